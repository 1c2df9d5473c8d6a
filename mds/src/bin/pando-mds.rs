//! The `pando-mds` daemon: one rank.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use pando_mds::Config;
use pando_mon_client::{check_mons, is_address};
use pando_proto::Reason;
use pando_rpc::{Env, Shutdown, StopSignals};
use tokio::sync::oneshot::{self, Receiver};
use tracing_subscriber::EnvFilter;

/// Less leaves no room for the records of one operation.
const MIN_CACHE_BYTES: u64 = 1 << 20;
/// For a clean stop when standard input has ended.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// Wrong usage, as for flags that are none.
const USAGE: u8 = 2;

/// Serves one rank of Pando's metadata. Flags win over the file.
///
/// Exit codes: 0 it was asked to stop, 1 it cannot start or go on, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "pando-mds", version)]
struct Flags {
    /// TOML file with the same settings as the flags (`mons`, `listen`, `advertise`, `rank`, `cluster_id`, `cache_bytes`).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Addresses of the mons, host:port, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    mons: Vec<String>,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// What others are told to connect to; by default the address it listens on.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Which rank to serve.
    #[arg(long)]
    rank: Option<u32>,
    /// The cluster it belongs to, 32 hexadecimal digits: mons of any other are refused [default: that of the mons].
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// Memory for cached metadata and small files, in bytes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(MIN_CACHE_BYTES..))]
    cache_bytes: Option<u64>,
    /// Stop, as by SIGTERM, when standard input ends. For programs that start a rank and keep the other end of a pipe:
    /// it ends with them, also when they are killed. What is written there is ignored. Not for the file.
    #[arg(long)]
    stop_with_stdin: bool,
}

impl Flags {
    fn into_config(self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                toml::from_str(&text).with_context(|| format!("{} is no configuration of pando-mds", path.display()))?
            }
        };
        if !self.mons.is_empty() {
            config.mons = self.mons;
        }
        check_mons("--mons", &config.mons)?;
        config.listen = self.listen.unwrap_or(config.listen);
        config.advertise = self.advertise.unwrap_or(config.advertise);
        let advertise = &config.advertise;
        anyhow::ensure!(
            advertise.is_empty() || is_address(advertise),
            "--advertise takes HOST:PORT: `{}` is none",
            advertise.escape_debug()
        );
        config.rank = self.rank.unwrap_or(config.rank);
        anyhow::ensure!(
            self.cluster_id.as_deref() != Some(""),
            "--cluster-id is empty: leave it out, or name the cluster"
        );
        config.cluster_id = self.cluster_id.unwrap_or(config.cluster_id);
        config.cache_bytes = self.cache_bytes.unwrap_or(config.cache_bytes);
        // The file is not checked by clap.
        let given = config.cache_bytes;
        anyhow::ensure!(given >= MIN_CACHE_BYTES, "cache_bytes is {given}: use at least {MIN_CACHE_BYTES}");
        Ok(config)
    }
}

fn main() -> ExitCode {
    log_to_stderr();
    let flags = Flags::parse();
    let watches_stdin = flags.stop_with_stdin;
    let outcome = match flags.into_config() {
        Ok(config) => serve(config, watches_stdin).map_err(|error| (exit_code(&error), error)),
        Err(error) => Err((USAGE, error)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("pando-mds: {error:#}");
            ExitCode::from(code)
        }
    }
}

/// What the mons refuse as senseless is wrong usage too, and that nobody of those who were named is a mon.
fn exit_code(error: &anyhow::Error) -> u8 {
    let refused = |error: &pando_proto::Error| error.reason == Reason::InvalidRequest;
    if error.downcast_ref().is_some_and(refused) { USAGE } else { 1 }
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Colours are for terminals, not for log files.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}

fn serve(config: Config, watches_stdin: bool) -> anyhow::Result<()> {
    let stdin = watches_stdin.then(watch_stdin).transpose().context("cannot watch standard input")?;
    // R27: one thread carries the rank, its connections and its heartbeats.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(config, stdin))
}

async fn run(config: Config, stdin: Option<Receiver<()>>) -> anyhow::Result<()> {
    let env = Env::system();
    let (rank, mons) = (config.rank, config.mons.join(", "));
    let mut stdin = Box::pin(ended(stdin));
    let handle = tokio::select! {
        started = pando_mds::start(config, env.clone()) => {
            started.with_context(|| format!("cannot start rank {rank} with the mons at {mons} (see --mons)"))?
        }
        () = &mut stdin => return Ok(()),
    };
    let signals = StopSignals::watch()?;
    println!("pando-mds: rank {rank} listens on {}", handle.address());
    tokio::task::spawn_local(stop_on_signal(env.shutdown, signals, stdin));
    Ok(handle.outcome().await?)
}

async fn stop_on_signal(shutdown: Shutdown, mut signals: StopSignals, stdin: impl Future<Output = ()>) {
    tokio::select! {
        _ = signals.next() => {}
        () = stdin => {}
    }
    tracing::info!("stopping");
    shutdown.stop();
}

/// Tells when standard input ends. On a thread of its own, which sleeps in its read: tokio's standard input would keep
/// the runtime from ending.
fn watch_stdin() -> std::io::Result<Receiver<()>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        // An error is an end too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = sender.send(());
        // Who started it is gone, and perhaps the mons with it: nobody is there to see it hang.
        std::thread::sleep(LAST_MOMENTS);
        eprintln!("pando-mds: it does not stop by itself");
        std::process::exit(1);
    })?;
    Ok(receiver)
}

/// Never, if nothing is watched.
async fn ended(stdin: Option<Receiver<()>>) {
    match stdin {
        Some(stdin) => {
            let _ = stdin.await;
        }
        None => std::future::pending().await,
    }
}
