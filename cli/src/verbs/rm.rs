//! `pando rm`

use std::path::Path;

use pando_client::Client;
use pando_proto::Errno;

use crate::args::RmArgs;
use crate::failure::{Failure, Failures};
use crate::session::{Session, finish};

pub async fn run(session: &Session, args: RmArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = all(&client, &args).await;
    finish(client, outcome).await
}

async fn all(client: &Client, args: &RmArgs) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for path in &args.paths {
        let outcome = match one(client, path, args.recursive).await {
            Err(error) if args.force && error.errno() == Errno::ENOENT => Ok(()),
            other => other.map_err(Failure::from),
        };
        let outcome = outcome.map_err(|failure| failure.hint(Errno::EISDIR, "use `rm -r` to remove it with all below"));
        failures.note(outcome)?;
    }
    failures.finish()
}

async fn one(client: &Client, path: &Path, recursive: bool) -> pando_client::Result<()> {
    match client.remove_file(path).await {
        Err(error) if recursive && matches!(error.errno(), Errno::EISDIR | Errno::ENOTDIR) => {
            client.remove_dir_all(path).await
        }
        other => other,
    }
}
