//! The `pando-osd` daemon.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use pando_osd::engine::{EngineKind, EngineOptions};
use pando_osd::{Config, Storage};
use pando_rpc::Env;
use serde::Deserialize;

/// What is logged unless `RUST_LOG` says otherwise: the engine only when something is wrong.
const LOG: &str = "info,fjall=warn,lsm_tree=warn";

/// Stores placement groups of a Pando cluster on a local disk.
#[derive(Debug, Parser)]
#[command(name = "pando-osd", version)]
struct Flags {
    /// TOML file with the same names as the flags (`data_dir`, `mons`, ...); flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// Everything that flags and the file may set.
#[derive(Debug, Default, Parser, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Addresses of the mons, host:port, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    mons: Option<Vec<String>>,
    /// Address to listen on [default: 127.0.0.1:0].
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// host:port that others reach this OSD by [default: the address it listens on].
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Data directory; made if need be.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Back end: fjall, file or memory [default: fjall].
    #[arg(long)]
    engine: Option<String>,
    /// Failure domain: replicas are spread over hosts [default: localhost].
    #[arg(long)]
    host: Option<String>,
    /// Relative share of data; 1000 is usual [default: 1000].
    #[arg(long)]
    weight: Option<u32>,
    /// Bytes of cache for what is read from disk.
    #[arg(long, value_name = "BYTES")]
    cache_bytes: Option<u64>,
    /// Percent of the disk in use from which on only deletes are accepted [default: 95].
    #[arg(long, value_name = "PERCENT")]
    full_ratio_percent: Option<u8>,
}

impl Settings {
    fn or(self, file: Self) -> Self {
        Self {
            mons: self.mons.or(file.mons),
            listen: self.listen.or(file.listen),
            advertise: self.advertise.or(file.advertise),
            data_dir: self.data_dir.or(file.data_dir),
            engine: self.engine.or(file.engine),
            host: self.host.or(file.host),
            weight: self.weight.or(file.weight),
            cache_bytes: self.cache_bytes.or(file.cache_bytes),
            full_ratio_percent: self.full_ratio_percent.or(file.full_ratio_percent),
        }
    }

    fn into_config(self) -> anyhow::Result<Config> {
        let mons = self.mons.context("no mon is named: give --mons HOST:PORT[,HOST:PORT...]")?;
        let engine: EngineKind = self.engine.as_deref().unwrap_or("fjall").parse()?;
        let path = match (self.data_dir, engine) {
            (Some(path), _) => path,
            (None, EngineKind::Memory) => PathBuf::new(),
            (None, _) => anyhow::bail!("no data directory is named: give --data-dir DIR"),
        };
        let mut options = EngineOptions::default();
        if let Some(bytes) = self.cache_bytes {
            options.cache_bytes = bytes;
        }
        let listen = self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut config = Config::new(mons, listen, Storage::Directory { path, engine, options });
        config.advertise = self.advertise;
        if config.advertise.is_none() && listen.ip().is_unspecified() {
            anyhow::bail!("{listen} is no address that others can reach: name one with --advertise HOST:PORT");
        }
        if let Some(host) = self.host {
            config.host = host;
        }
        if let Some(weight) = self.weight {
            config.weight = weight;
        }
        if let Some(percent) = self.full_ratio_percent {
            anyhow::ensure!((1..=100).contains(&percent), "--full-ratio-percent takes 1 to 100, not {percent}");
            config.full_ratio_percent = percent;
        }
        Ok(config)
    }
}

fn settings(flags: Flags) -> anyhow::Result<Settings> {
    let file = match &flags.config {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            toml::from_str(&text).with_context(|| format!("{} is no configuration of an OSD", path.display()))?
        }
    };
    Ok(flags.settings.or(file))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match run().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            // One line for people: a backtrace helps nobody who has mistyped a path.
            eprintln!("pando-osd: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| LOG.into());
    // Colours are for terminals, not for log files.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    let config = settings(Flags::parse())?.into_config()?;
    let env = Env::system();
    let shutdown = env.shutdown.clone();
    let handle = pando_osd::start(config, env).await?;
    println!("{} listens on {}", handle.id(), handle.address());
    tokio::spawn(async move {
        let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(signal) => signal,
            Err(error) => return tracing::warn!(%error, "SIGTERM will not stop this OSD cleanly"),
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        shutdown.stop();
    });
    let failure = handle.failure();
    handle.join().await;
    match failure.get() {
        Some(error) => Err(error.clone().into()),
        None => Ok(()),
    }
}
