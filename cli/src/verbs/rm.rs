//! `pando rm`

use std::path::Path;

use pando_client::Client;
use pando_proto::Errno;

use crate::args::RmArgs;
use crate::failure::{Failure, Failures};
use crate::session::{Session, finish};

pub async fn run(session: &Session, args: RmArgs) -> Result<(), Failure> {
    // Before anything is touched: what a slip of the finger would remove is everything.
    if args.recursive
        && let Some(root) = args.paths.iter().find(|path| is_root(path))
    {
        let shown = root.display();
        return Err(Failure::Usage(format!("`rm -r {shown}` would remove everything: name what is below it instead")));
    }
    let client = session.client().await?;
    let outcome = all(&client, &args).await;
    finish(client, outcome).await
}

async fn all(client: &Client, args: &RmArgs) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for path in &args.paths {
        let outcome = match one(client, path, args.recursive).await {
            Err(error) if args.force && error.errno() == Errno::ENOENT => Ok(()),
            other => other.map_err(|error| Failure::from(error).at_one_of(&[path])),
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

/// Whether a path names the root of the file system, spelled in whatever way.
fn is_root(path: &Path) -> bool {
    use std::path::Component;
    let mut depth = 0usize;
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth = depth.saturating_sub(1),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_known_in_every_spelling() {
        for path in ["/", "//", "/.", "/a/..", "/../..", ""] {
            assert!(is_root(Path::new(path)), "{path}");
        }
        for path in ["/a", "/a/../b", "/.a"] {
            assert!(!is_root(Path::new(path)), "{path}");
        }
    }
}
