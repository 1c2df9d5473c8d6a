//! The `pando` command: a cluster on this machine, and the files in any cluster.
//!
//! Exit codes: 0 all went well, 1 an operation failed, 2 wrong usage, 3 the cluster cannot be reached;
//! 129, 130 and 143 interrupted by SIGHUP, SIGINT and SIGTERM (`up` ends well by them).
//! One file per verb in `verbs/`; `args.rs` is what can be typed, `output.rs` what is printed.

#![forbid(unsafe_code)]

mod args;
mod failure;
mod interrupts;
mod local;
mod output;
mod session;
mod subtrees;
mod verbs;
mod walk;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Command, UpArgs};
use failure::Failure;
use session::Session;

fn main() -> ExitCode {
    let args = Args::parse();
    let verbose = args.verbose;
    let command = args.command.clone().unwrap_or_else(|| Command::Up(UpArgs::default()));
    log_to_stderr(&command, verbose);
    let outcome = match command {
        Command::Up(up) => match up.checked(args.mons.as_deref()) {
            Ok(up) => run(verbs::up::run(up, args.json)),
            Err(text) => Err(Failure::Usage(text)),
        },
        other => Session::new(&args).and_then(|session| run(perform(session, other))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit_code())
        }
    }
}

/// One thread is enough: the daemons of `up` bring their own.
fn run(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::local("runtime", &error))?;
    let outcome = runtime.block_on(verb);
    // A read of standard input may still block a thread: do not wait for it.
    runtime.shutdown_background();
    outcome
}

/// Does what a command says. Where nobody answers, the mons may know why.
async fn perform(session: Session, command: Command) -> Result<(), Failure> {
    match dispatch(&session, command).await {
        Err(failure) if failure.exit_code() == 3 => Err(failure.seen_by_mons(session.ranks_up().await)),
        outcome => outcome,
    }
}

async fn dispatch(session: &Session, command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(_) => unreachable!("handled by main"),
        Command::Ls(args) => verbs::ls::run(session, args).await,
        Command::Cat(args) => verbs::cat::run(session, args).await,
        Command::Put(args) => verbs::put::run(session, args).await,
        Command::Get(args) => verbs::get::run(session, args).await,
        Command::Mkdir(args) => verbs::mkdir::run(session, args).await,
        Command::Rm(args) => verbs::rm::run(session, args).await,
        Command::Mv(args) => verbs::mv::run(session, args).await,
        Command::Ln(args) => verbs::ln::run(session, args).await,
        Command::Stat(args) => verbs::stat::run(session, args).await,
        Command::Df => verbs::df::run(session).await,
        Command::Status => verbs::status::run(session).await,
        Command::Setting(command) => verbs::setting::run(session, command).await,
        Command::Osd(command) => verbs::osd::run(session, command).await.map_err(Failure::by_state),
        Command::Pg(command) => verbs::pg::run(session, command).await.map_err(Failure::by_state),
        Command::Rank(command) => verbs::rank::run(session, command).await.map_err(Failure::by_state),
        Command::Subtree(command) => verbs::subtree::run(session, command).await.map_err(Failure::by_state),
        Command::Balancer(command) => verbs::balancer::run(session, command).await,
        Command::Session(command) => verbs::session::run(session, command).await.map_err(Failure::by_state),
    }
}

/// `RUST_LOG` decides; else `up` and `-v` tell what matters.
fn log_to_stderr(command: &Command, verbose: bool) {
    let default = match (command, verbose) {
        (_, true) => "info,pando=debug,fjall=warn,lsm_tree=warn",
        (Command::Up(_), false) => "warn",
        _ => "error",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    // Colours are for terminals, not for log files.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}
