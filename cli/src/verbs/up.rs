//! `pando up`: a whole cluster in this process. JSON: one line once it serves, with
//! `data` (a directory, or null when all is temporary), `mons`, `mds`, `osds` (addresses); then nothing until it is interrupted.

use std::collections::BTreeSet;
use std::time::Duration;

use pando_local_cluster::{EngineKind, LocalCluster, Options};
use pando_proto::{Error, Reason};
use serde_json::json;

use crate::args::{Engine, UpArgs};
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::output;

/// How often to look whether a daemon has ended by itself.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub async fn run(args: UpArgs, json: bool) -> Result<(), Failure> {
    let mut interrupts = Interrupts::watch()?;
    let starting = LocalCluster::start(options(&args));
    let cluster = tokio::select! {
        started = starting => started.map_err(|error| cannot_start(&error))?,
        _ = interrupts.next() => return Ok(()),
    };
    let announced = if json { json_line(&args, &cluster) } else { announce(&args, &cluster) };
    if announced.is_ok() {
        tokio::select! {
            _ = interrupts.next() => {}
            () = watch(&cluster) => {}
        }
    }
    if !json {
        eprintln!("pando: stopping; {}", what_stays(&args));
    }
    cluster.shutdown().await;
    announced
}

/// Flags that contradict the directory are wrong usage too.
fn cannot_start(error: &Error) -> Failure {
    let text = format!("cannot start: {}", error.message);
    if error.reason == Reason::InvalidRequest { Failure::Usage(text) } else { Failure::Local(text) }
}

fn what_stays(args: &UpArgs) -> String {
    match args.data() {
        Some(data) if args.engine != Engine::Memory => format!("what was acknowledged stays in {}", data.display()),
        _ => "all files were in memory and end with it".to_owned(),
    }
}

fn options(args: &UpArgs) -> Options {
    Options {
        data: args.data(),
        mons: args.mons_count,
        osds: args.osds,
        mds: args.mds,
        replicas: args.replicas(),
        engine: match args.engine {
            Engine::Fjall => EngineKind::Fjall,
            Engine::File => EngineKind::File,
            Engine::Memory => EngineKind::Memory,
        },
        mds_cache_bytes: args.mds_cache_bytes,
        mon_port: args.mon_port,
        inline_limit: args.inline_limit,
        ..Options::default()
    }
}

/// Tells of daemons that end by themselves; never returns.
async fn watch(cluster: &LocalCluster) {
    let mut told = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for daemon in cluster.dead_daemons() {
            if told.insert(daemon.clone()) {
                eprintln!(
                    "pando: {daemon} has ended by itself; its log says why, a new start of `pando up` starts it again"
                );
            }
        }
    }
}

/// Of the ranks, by number.
fn mds(cluster: &LocalCluster) -> Vec<String> {
    cluster.rank_addresses().values().map(ToString::to_string).collect()
}

fn json_line(args: &UpArgs, cluster: &LocalCluster) -> Result<(), Failure> {
    let osds: Vec<_> = cluster.osd_addresses().values().map(ToString::to_string).collect();
    let fields = json!({
        "data": args.data().map(|data| output::shown(data.as_os_str().as_encoded_bytes())),
        "mons": cluster.mon_addresses(),
        "mds": mds(cluster),
        "osds": osds,
    });
    output::line(fields.to_string())
}

fn announce(args: &UpArgs, cluster: &LocalCluster) -> Result<(), Failure> {
    let mons = cluster.mon_addresses().join(",");
    let osds: Vec<_> = cluster.osd_addresses().values().map(ToString::to_string).collect();
    let mds = mds(cluster);
    let copies = match args.replicas() {
        1 => "1 copy".to_owned(),
        more => format!("{more} copies"),
    };
    let (place, next) = match args.data() {
        Some(data) if args.engine != Engine::Memory => {
            (format!("Data in {}", data.display()), "the next start goes on with the same data")
        }
        _ => ("All files are in memory".to_owned(), "all files end with it"),
    };
    // The default address needs no flag.
    let flag = if mons == "127.0.0.1:7100" { String::new() } else { format!(" --mons {mons}") };
    output::line(format!("Pando is up. {place}, {copies} of everything."))?;
    output::line(format!("  mons  {mons}"))?;
    output::line(format!("  mds   {}", mds.join(" ")))?;
    output::line(format!("  osds  {}", osds.join(" ")))?;
    // As this process was called: `cargo run` puts nothing on the PATH.
    let pando = std::env::args().next().unwrap_or_else(|| "pando".to_owned());
    output::line("In another terminal:")?;
    output::line(format!("  {pando}{flag} put README.md /hello"))?;
    output::line(format!("  {pando}{flag} ls -l /"))?;
    output::line(format!("  {pando}{flag} cat /hello"))?;
    output::line(format!("  {pando}{flag} status"))?;
    if let Some(rank) = mds.first() {
        output::line(format!("  grpcurl -plaintext {rank} list"))?;
    }
    output::line(format!("Ctrl-C stops it; {next}."))
}
