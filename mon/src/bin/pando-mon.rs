//! The `pando-mon` daemon.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use pando_mon::{Config, PoolSpec, Storage};
use pando_mon_client::is_address;
use pando_rpc::{Env, StopSignals};
use serde::Deserialize;

/// Wrong usage, as for flags that are none.
const USAGE: u8 = 2;

/// A monitor of a Pando cluster: one member of the Raft group that holds the cluster map.
///
/// Exit codes: 0 it was asked to stop, 1 it cannot start or go on, 2 wrong usage.
#[derive(Parser, Debug)]
#[command(name = "pando-mon", version)]
struct Flags {
    /// TOML file with the same names as the flags below (with `_` for `-`); flags win.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Number of this mon in the group, from 1.
    #[arg(long)]
    id: Option<u64>,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Address that others reach this mon at, as host:port.
    #[arg(long)]
    advertise: Option<String>,
    /// Data directory.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// A member of the group, this one included, as ID=HOST:PORT. Once for each; none for a single mon.
    #[arg(long = "peer", value_name = "ID=HOST:PORT")]
    peers: Vec<String>,
    /// Refuse a data directory of any other cluster (32 hexadecimal digits).
    #[arg(long)]
    cluster_id: Option<String>,
    #[command(flatten)]
    creation: Creation,
}

/// What counts only when the cluster is made.
#[derive(clap::Args, Deserialize, Debug, Default)]
struct Creation {
    /// First start of a cluster: placement groups get their members when so many OSDs are up.
    #[arg(long)]
    expected_osds: Option<u32>,
    /// First start of a cluster: copies of all data, 1 to 3.
    #[arg(long)]
    replicas: Option<u32>,
    /// First start of a cluster: placement groups of the metadata pool.
    #[arg(long)]
    metadata_pgs: Option<u32>,
    /// First start of a cluster: placement groups of the data pool.
    #[arg(long)]
    data_pgs: Option<u32>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default, deny_unknown_fields)]
struct File {
    id: Option<u64>,
    listen: Option<SocketAddr>,
    advertise: Option<String>,
    data_dir: Option<PathBuf>,
    peers: BTreeMap<String, String>,
    cluster_id: Option<String>,
    expected_osds: Option<u32>,
    replicas: Option<u32>,
    metadata_pgs: Option<u32>,
    data_pgs: Option<u32>,
}

fn read_file(path: &PathBuf) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is no configuration of pando-mon", path.display()))
}

fn peers(flags: &[String], file: BTreeMap<String, String>) -> anyhow::Result<BTreeMap<u64, String>> {
    let from_flags = flags.iter().map(|peer| peer.split_once('=').context("--peer takes ID=HOST:PORT"));
    let given: Vec<(String, String)> = if flags.is_empty() {
        file.into_iter().collect()
    } else {
        from_flags
            .map(|pair| pair.map(|(id, address)| (id.to_owned(), address.to_owned())))
            .collect::<Result<_, _>>()?
    };
    let mut peers = BTreeMap::new();
    for (id, address) in given {
        let number: u64 = id.trim().parse().with_context(|| format!("`{id}` is no number of a mon"))?;
        ensure!(is_address(&address), "--peer takes ID=HOST:PORT: `{}` is no HOST:PORT", address.escape_debug());
        if peers.insert(number, address).is_some() {
            bail!("mon {number} is named twice");
        }
    }
    Ok(peers)
}

fn parse_cluster_id(text: &str) -> anyhow::Result<[u8; 16]> {
    pando_proto::ids::parse_cluster_id(text).context("a cluster id has 32 hexadecimal digits")
}

fn config(flags: Flags) -> anyhow::Result<Config> {
    let file = flags.config.as_ref().map(read_file).transpose()?.unwrap_or_default();
    let listen = flags.listen.or(file.listen).context("no address to listen on: --listen 127.0.0.1:7300")?;
    let data = flags.data_dir.or(file.data_dir).context("no data directory: --data-dir DIR")?;
    let mut config = Config::new(flags.id.or(file.id).unwrap_or(1), listen, Storage::Dir(data));
    config.advertise = flags.advertise.or(file.advertise);
    if let Some(wrong) = config.advertise.as_deref().filter(|address| !is_address(address)) {
        bail!("--advertise takes HOST:PORT: `{}` is none", wrong.escape_debug());
    }
    config.peers = peers(&flags.peers, file.peers)?;
    config.cluster_id = flags.cluster_id.or(file.cluster_id).as_deref().map(parse_cluster_id).transpose()?;
    let creation = flags.creation;
    let replicas = creation.replicas.or(file.replicas).unwrap_or(1);
    config.expected_osds = creation.expected_osds.or(file.expected_osds).unwrap_or(replicas.max(1));
    config.metadata_pool = PoolSpec::new(replicas, creation.metadata_pgs.or(file.metadata_pgs).unwrap_or(16));
    config.data_pool = PoolSpec::new(replicas, creation.data_pgs.or(file.data_pgs).unwrap_or(32));
    Ok(config)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    log_to_stderr();
    let outcome = match config(Flags::parse()) {
        Ok(config) => run(config).await.map_err(|error| (exit_code(&error), error)),
        Err(error) => Err((USAGE, error)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("pando-mon: {error:#}");
            ExitCode::from(code)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if matches!(error.downcast_ref(), Some(pando_mon::Error::Config(_))) { USAGE } else { 1 }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    // Colours are for terminals, not for log files.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}

async fn run(config: Config) -> anyhow::Result<()> {
    let (id, env) = (config.id, Env::system());
    let handle = pando_mon::start(config, env.clone()).await?;
    let mut signals = StopSignals::watch()?;
    println!("pando-mon {id} serves on {}", handle.address());
    let mut joined = std::pin::pin!(handle.join());
    tokio::select! {
        // Only a disk that failed, or lost something, ends it by itself.
        () = &mut joined => bail!("the mon has stopped by itself: see its log"),
        _ = signals.next() => {}
    }
    env.shutdown.stop();
    joined.await;
    Ok(())
}
