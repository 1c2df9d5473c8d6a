//! The `pando-mds` daemon: one rank.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use pando_mds::Config;
use pando_rpc::{Env, Shutdown};
use tracing_subscriber::EnvFilter;

/// Less leaves no room for the records of one operation.
const MIN_CACHE_BYTES: u64 = 1 << 20;

/// Serves one rank of Pando's metadata. Flags win over the file.
#[derive(Debug, Parser)]
#[command(name = "pando-mds", version)]
struct Flags {
    /// TOML file with the same settings as the flags (`mons`, `listen`, `advertise`, `rank`, `cache_bytes`).
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
    /// Memory for cached metadata and small files, in bytes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(MIN_CACHE_BYTES..))]
    cache_bytes: Option<u64>,
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
        config.listen = self.listen.unwrap_or(config.listen);
        config.advertise = self.advertise.unwrap_or(config.advertise);
        config.rank = self.rank.unwrap_or(config.rank);
        config.cache_bytes = self.cache_bytes.unwrap_or(config.cache_bytes);
        // The file is not checked by clap.
        let given = config.cache_bytes;
        anyhow::ensure!(given >= MIN_CACHE_BYTES, "cache_bytes is {given}: use at least {MIN_CACHE_BYTES}");
        Ok(config)
    }
}

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pando-mds: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Colours are for terminals, not for log files.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    let config = Flags::parse().into_config()?;
    // R27: one thread carries the rank, its connections and its heartbeats.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(config))
}

async fn run(config: Config) -> anyhow::Result<()> {
    let env = Env::system();
    let (rank, mons) = (config.rank, config.mons.join(", "));
    let handle = pando_mds::start(config, env.clone())
        .await
        .with_context(|| format!("cannot start rank {rank} with the mons at {mons} (see --mons)"))?;
    println!("pando-mds: rank {rank} listens on {}", handle.address());
    tokio::task::spawn_local(stop_on_signal(env.shutdown));
    handle.join().await;
    Ok(())
}

async fn stop_on_signal(shutdown: Shutdown) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tracing::info!("stopping");
    shutdown.stop();
}
