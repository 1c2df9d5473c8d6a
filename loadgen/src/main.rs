//! The `loadgen` command.

use std::process::ExitCode;

use anyhow::Context as _;
use loadgen::cli::Cli;
use loadgen::leftovers;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    let run = || {
        let cli = Cli::read()?;
        leftovers::remove_on_signals().context("cannot watch signals")?;
        cli.run()
    };
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("loadgen: {error:#}");
            ExitCode::from(2)
        }
    }
}
