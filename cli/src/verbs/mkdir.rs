//! `pando mkdir`

use std::path::Path;

use pando_client::Client;
use pando_proto::Errno;

use crate::args::MkdirArgs;
use crate::failure::{Failure, Failures};
use crate::session::{Session, finish};

pub async fn run(session: &Session, args: MkdirArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = all(&client, &args).await;
    finish(client, outcome).await
}

async fn all(client: &Client, args: &MkdirArgs) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for path in &args.paths {
        let outcome = one(client, path, args).await;
        failures.note(outcome.map_err(|failure| failure.hint(Errno::ENOENT, "`mkdir -p` makes the parents too")))?;
    }
    failures.finish()
}

async fn one(client: &Client, path: &Path, args: &MkdirArgs) -> Result<(), Failure> {
    if !args.parents {
        client.create_dir_with_mode(path, args.mode).await?;
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        client.create_dir_all(parent).await?;
    }
    match client.create_dir_with_mode(path, args.mode).await {
        Err(error) if error.errno() == Errno::EEXIST && client.metadata(path).await?.is_dir() => Ok(()),
        other => other.map(|_| ()).map_err(Failure::from),
    }
}
