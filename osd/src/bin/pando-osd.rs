//! The `pando-osd` daemon.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use pando_mon_client::{check_mons, is_address};
use pando_osd::engine::{EngineKind, EngineOptions};
use pando_osd::{Config, Storage};
use pando_proto::Reason;
use pando_rpc::{Env, StopSignals};
use serde::Deserialize;

/// What is logged unless `RUST_LOG` says otherwise: the engine only when something is wrong.
const LOG: &str = "info,fjall=warn,lsm_tree=warn";

/// Wrong usage, as for flags that are none.
const USAGE: u8 = 2;

/// Stores placement groups of a Pando cluster on a local disk.
///
/// Exit codes: 0 it was asked to stop, 1 it cannot start or go on, 2 wrong usage.
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
        check_mons("--mons", &mons)?;
        if let Some(wrong) = self.advertise.as_deref().filter(|address| !is_address(address)) {
            anyhow::bail!("--advertise takes HOST:PORT: `{}` is none", wrong.escape_debug());
        }
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
    log_to_stderr();
    let outcome = match settings(Flags::parse()).and_then(Settings::into_config) {
        Ok(config) => run(config).await.map_err(|error| (exit_code(&error), error)),
        Err(error) => Err((USAGE, error)),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err((code, error)) => {
            // One line for people: a backtrace helps nobody who has mistyped a path.
            eprintln!("pando-osd: {error:#}");
            std::process::ExitCode::from(code)
        }
    }
}

/// What the mons refuse as senseless is wrong usage too, and that nobody of those who were named is a mon.
fn exit_code(error: &anyhow::Error) -> u8 {
    let refused = |error: &pando_proto::Error| error.reason == Reason::InvalidRequest;
    if error.downcast_ref().is_some_and(refused) { USAGE } else { 1 }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| LOG.into());
    // Colours are for terminals, not for log files.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}

async fn run(config: Config) -> anyhow::Result<()> {
    let env = Env::system();
    let shutdown = env.shutdown.clone();
    let handle = pando_osd::start(config, env).await?;
    let mut signals = StopSignals::watch()?;
    println!("{} listens on {}", handle.id(), handle.address());
    tokio::spawn(async move {
        signals.next().await;
        shutdown.stop();
    });
    let failure = handle.failure();
    handle.join().await;
    match failure.get() {
        Some(error) => Err(error.clone().into()),
        None => Ok(()),
    }
}
