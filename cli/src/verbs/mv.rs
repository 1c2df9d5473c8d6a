//! `pando mv`

use std::path::Path;

use pando_client::Client;
use pando_proto::Errno;

use crate::args::MvArgs;
use crate::failure::Failure;
use crate::output;
use crate::session::{Session, finish};
use crate::subtrees::without_links;
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
/// so it is asked again. For EINVAL too: that is all that it says of a directory that would come to lie in itself.
async fn about(client: &Client, args: &MvArgs, failure: Failure) -> Failure {
    match failure.errno() {
        Some(Errno::ENOENT) => {
            let source = client.symlink_metadata(&args.from).await;
            let missing = source.is_err_and(|error| error.errno() == Errno::ENOENT);
            failure.at(if missing { &args.from } else { &args.to })
        }
        Some(Errno::EINVAL) if lies_in(client, &args.from, &args.to).await => {
            into_itself(failure, &args.from, &args.to)
        }
        Some(Errno::EINVAL) if args.exchange && lies_in(client, &args.to, &args.from).await => {
            into_itself(failure, &args.to, &args.from)
        }
        _ => failure.at_one_of(&[&args.from, &args.to]),
    }
}

fn into_itself(failure: Failure, dir: &Path, path: &Path) -> Failure {
    let path = output::shown(path.as_os_str().as_encoded_bytes());
    failure.saying(format!("a directory cannot be moved into itself, and {path} lies in it")).at(dir)
}

/// Whether `dir` is a directory, and `path` itself or somewhere below it.
async fn lies_in(client: &Client, dir: &Path, path: &Path) -> bool {
    let found = client.symlink_metadata(dir).await.ok().filter(pando_client::Metadata::is_dir);
    let Some(found) = found else { return false };
    let is_it = |other: pando_client::Metadata| other.ino() == found.ino();
    if client.metadata(path).await.is_ok_and(is_it) {
        return true;
    }
    // The last name need not be there.
    let Ok(parent) = without_links(client, path.parent().unwrap_or(Path::new("/"))).await else { return false };
    for above in parent.ancestors() {
        if client.symlink_metadata(above).await.is_ok_and(is_it) {
            return true;
        }
    }
    false
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
