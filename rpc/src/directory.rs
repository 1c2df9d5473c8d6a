//! Data directories that are still there after a power cut: a name is durable only once the directory that holds it is
//! synced.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Makes a data directory if it does not exist, and those above it. What is there already is synced into its parent as
/// well: a launcher made it, or a start that was cut short.
///
/// # Errors
/// What the operating system says.
pub fn create_data_directory(dir: &Path) -> io::Result<()> {
    create_data_directory_with(dir, &mut sync)
}

/// Makes a directory and those above it, each durable in its parent. What exists counts as durable.
///
/// # Errors
/// What the operating system says.
pub fn create_durably(dir: &Path) -> io::Result<()> {
    create_with(dir, &mut sync).map(|_| ())
}

/// Makes names made or removed in `dir` durable.
///
/// # Errors
/// What the operating system says.
pub fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn create_data_directory_with(dir: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    if create_with(dir, sync)? || dir.parent().is_none() {
        return Ok(());
    }
    match sync(parent(dir)) {
        // It may be another user's, who lets nobody look into it: then it is for that one to see to.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Whether it was made here.
fn create_with(dir: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<bool> {
    if dir.is_dir() {
        return Ok(false);
    }
    create_with(parent(dir), sync)?;
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(false),
        Err(error) => Err(error),
        Ok(()) => sync(parent(dir)).map(|()| true),
    }
}

fn parent(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn synced(dir: &Path) -> Vec<PathBuf> {
        let mut synced = Vec::new();
        create_data_directory_with(dir, &mut |dir| {
            synced.push(dir.to_owned());
            sync(dir)
        })
        .unwrap();
        assert!(dir.is_dir());
        synced
    }

    #[test]
    fn each_new_directory_is_synced_into_its_parent_and_the_last_one_always() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(synced(&root.join("a/b/c")), [root.to_owned(), root.join("a"), root.join("a/b")]);
        assert_eq!(synced(&root.join("a/b/c")), [root.join("a/b")], "whoever made it may not have come so far");
        assert!(synced(Path::new("/")).is_empty());
    }

    #[test]
    fn a_parent_that_may_not_be_looked_into_is_somebody_elses() {
        let root = tempfile::tempdir().unwrap();
        let denied = |_: &Path| Err(io::ErrorKind::PermissionDenied.into());
        create_data_directory_with(root.path(), &mut { denied }).unwrap();
        let failed = |_: &Path| Err(io::ErrorKind::Other.into());
        assert!(create_data_directory_with(root.path(), &mut { failed }).is_err());
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), b"").unwrap();
        assert!(create_data_directory(&root.path().join("file")).is_err());
        assert!(create_data_directory(&root.path().join("file/sub")).is_err());
    }
}
