//! `pando mv`

use pando_client::Client;
use pando_proto::Errno;

use crate::args::MvArgs;
use crate::failure::Failure;
use crate::session::{Session, finish};
use crate::verbs::into_directory;

pub async fn run(session: &Session, args: MvArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = rename(&client, &args).await.map_err(|failure| failure.at_one_of(&[&args.from, &args.to]));
    finish(client, outcome.map_err(|failure| failure.hint(Errno::EEXIST, "without `-n` it is replaced"))).await
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
