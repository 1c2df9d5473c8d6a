//! `pando mv`

use pando_client::Client;
use pando_proto::Errno;

use crate::args::MvArgs;
use crate::failure::Failure;
use crate::session::{Session, finish};
use crate::verbs::into_directory;

pub async fn run(session: &Session, args: MvArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = match rename(&client, &args).await {
        Err(failure) => Err(about(&client, &args, failure).await.hint(Errno::EEXIST, "without `-n` it is replaced")),
        Ok(()) => Ok(()),
    };
    finish(client, outcome).await
}

/// The same about the path that is meant. Of what is missing the cluster may name either, for it looks both up at once;
/// so it is asked again.
async fn about(client: &Client, args: &MvArgs, failure: Failure) -> Failure {
    if failure.errno() != Some(Errno::ENOENT) {
        return failure.at_one_of(&[&args.from, &args.to]);
    }
    let source = client.symlink_metadata(&args.from).await;
    let missing = source.is_err_and(|error| error.errno() == Errno::ENOENT);
    failure.at(if missing { &args.from } else { &args.to })
}

async fn rename(client: &Client, args: &MvArgs) -> Result<(), Failure> {
    if args.exchange {
        return Ok(client.exchange(&args.from, &args.to).await?);
    }
    let to = into_directory(client, &args.to, &args.from).await?;
    if args.no_replace {
        return Ok(client.rename_no_replace(&args.from, to).await?);
    }
    Ok(client.rename(&args.from, to).await?)
}
