//! The verbs, one file each.

pub mod balancer;
pub mod cat;
pub mod df;
pub mod explain;
pub mod get;
pub mod ln;
pub mod ls;
pub mod mkdir;
pub mod mv;
pub mod osd;
pub mod pg;
pub mod put;
pub mod rank;
pub mod rm;
pub mod session;
pub mod setting;
pub mod stat;
pub mod status;
pub mod subtree;
pub mod up;

use std::path::{Path, PathBuf};

use pando_client::Client;
use pando_proto::Errno;

use crate::failure::Failure;

/// `path`, or the same name inside it if it is a directory, as cp and mv do.
async fn into_directory(client: &Client, path: &Path, name_of: &Path) -> Result<PathBuf, Failure> {
    match client.metadata(path).await {
        Ok(found) if found.is_dir() => match name_of.file_name() {
            Some(name) => Ok(path.join(name)),
            None => Err(Failure::Usage("the target is a directory and the source has no name: name the file".into())),
        },
        Ok(_) => Ok(path.to_owned()),
        Err(error) if error.errno() == Errno::ENOENT => Ok(path.to_owned()),
        Err(error) => Err(error.into()),
    }
}
