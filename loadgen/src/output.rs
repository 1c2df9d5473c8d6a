//! Files that a run leaves at its end, each all at once: nobody sees half of one, and that of an earlier run stays until then.

use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use crate::leftovers;

/// Looks, before a run that may take long, whether a file can be written at its end. Nothing is changed.
///
/// Errors: it cannot.
pub fn check(file: &Path) -> anyhow::Result<()> {
    let checked = leftovers::undisturbed(|| {
        let Some(target) = target(file)? else { return Ok(()) };
        if target.exists() {
            OpenOptions::new().write(true).open(&target)?;
        }
        temporary(&target).map(drop)
    });
    checked.with_context(|| format!("cannot write {}", file.display()))
}

/// Writes a file. One that is there keeps its mode.
///
/// Errors: it cannot be written.
pub fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let written = leftovers::undisturbed(|| {
        let Some(target) = target(file)? else { return Ok(std::fs::write(file, text)?) };
        let mut temporary = temporary(&target)?;
        temporary.write_all(text.as_bytes())?;
        if let Ok(before) = std::fs::metadata(&target) {
            temporary.as_file().set_permissions(before.permissions())?;
        }
        temporary.persist(&target)?;
        anyhow::Ok(())
    });
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The regular file that is meant, at the end of symlinks; `None` for what is written as it is, as a terminal or a pipe.
fn target(file: &Path) -> anyhow::Result<Option<PathBuf>> {
    let found = std::fs::metadata(file);
    // Its creation would say less clearly what is wrong.
    anyhow::ensure!(!found.as_ref().is_ok_and(std::fs::Metadata::is_dir), "it is a directory");
    let Ok(found) = found else { return Ok(Some(file.to_owned())) };
    // Links there are open files and no ways to them: /dev/stdout leads to /proc/self/fd/1.
    let opened = file.starts_with("/proc") || file.starts_with("/dev/fd");
    if opened || !found.is_file() || std::fs::read_link(file).is_ok_and(|to| to.starts_with("/proc")) {
        return Ok(None);
    }
    Ok(Some(std::fs::canonicalize(file)?))
}

/// Beside it; removed when it is dropped.
fn temporary(target: &Path) -> anyhow::Result<NamedTempFile> {
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(target.file_name().is_some(), "it has no name");
    let mut builder = tempfile::Builder::new();
    // As of any new file: the umask takes off what it will.
    let builder = builder.prefix(".loadgen-").permissions(Permissions::from_mode(0o666));
    Ok(builder.tempfile_in(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_all_at_once_and_a_check_makes_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report");
        check(&file).unwrap();
        assert!(names(dir.path()).is_empty());
        write(&file, "one").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("report", &link).unwrap();
        check(&link).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        write(&link, "two").unwrap();
        let mode = std::fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777;
        assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), mode), ("two", 0o640));
        assert_eq!(names(dir.path()), ["link", "report"]);
    }

    #[test]
    fn what_cannot_be_written_is_told_before() {
        let dir = tempfile::tempdir().unwrap();
        for wrong in [dir.path().to_owned(), dir.path().join("none/report"), PathBuf::from("/proc"), PathBuf::from("/")]
        {
            let error = check(&wrong).unwrap_err();
            assert!(format!("{error:#}").contains(wrong.to_str().unwrap()), "{error:#}");
        }
        assert!(check(Path::new("/proc/none")).is_err());
        check(Path::new("/dev/null")).unwrap();
        write(Path::new("/dev/null"), "nothing").unwrap();
        assert!(names(dir.path()).is_empty());
    }
}
