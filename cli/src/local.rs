//! Files on this machine that are replaced all at once.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pando_proto::Errno;
use rustix::fs::OFlags;

/// Symlinks in a row, as the kernel's limit.
const MAX_LINKS: usize = 40;
/// Names to try, where others with our process number were killed.
const MAX_TRIES: usize = 1000;

static MADE: AtomicU64 = AtomicU64::new(0);

/// What a path leads to.
#[derive(Debug)]
pub enum Place {
    /// A regular file, nothing yet, or a symlink that is not followed: it can be replaced.
    File { path: PathBuf, before: Option<Metadata> },
    /// To be opened and written as it is: a device, a pipe, or what the path is no way to.
    Other,
}

impl Place {
    /// Follows symlinks: it is the file there that is replaced, never a link.
    ///
    /// Errors: a directory on the way is missing; a file that this process may not write.
    pub fn followed(path: &Path) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(found) if !found.is_file() => return Ok(Self::Other),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if path.as_os_str().as_bytes().ends_with(b"/") => return Ok(Self::Other),
            _ => {}
        }
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let dir = fs::canonicalize(dir)?;
            // Links there are open files and no ways to them: /dev/stdout leads to /proc/self/fd/1.
            if dir.starts_with("/proc") {
                return Ok(Self::Other);
            }
            let Some(name) = path.file_name() else { return Ok(Self::Other) };
            let at = dir.join(name);
            match fs::symlink_metadata(&at) {
                Ok(found) if found.is_symlink() => path = dir.join(fs::read_link(&at)?),
                _ => return Self::itself(&at),
            }
        }
        Err(io::Error::from_raw_os_error(Errno::ELOOP.0))
    }

    /// Follows no symlink that has the name: it is replaced itself.
    ///
    /// Errors: as [`followed`](Self::followed).
    pub fn itself(path: &Path) -> io::Result<Self> {
        let before = match fs::symlink_metadata(path) {
            // Who may not write a file may not replace it either.
            Ok(found) if found.is_file() => Some(no_follow().open(path)?.metadata()?),
            Ok(found) if !found.is_symlink() => return Ok(Self::Other),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => None,
        };
        Ok(Self::File { path: path.to_owned(), before })
    }
}

/// Options to write what is there, unless it is a symlink.
pub fn no_follow() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Removed when it is dropped, unless it has taken its place.
#[derive(Debug)]
pub struct Temporary {
    path: Option<PathBuf>,
}

impl Temporary {
    /// A new file in the same directory that only its owner may read.
    pub fn beside(path: &Path) -> io::Result<(Self, File)> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        for _ in 0..MAX_TRIES {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".pando-get-{}-{number}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok((Self { path: Some(path) }, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }

    /// Gives the file its name, and the mode and owner of the one `before`; without that `mode`.
    pub fn take_place(
        mut self,
        file: &File,
        path: &Path,
        before: Option<&Metadata>,
        mode: Permissions,
    ) -> io::Result<()> {
        let mode = match before {
            Some(before) if keeps_owner(file, before)? => Permissions::from_mode(before.mode() & 0o7777),
            Some(before) => Permissions::from_mode(before.mode() & 0o777),
            None => mode,
        };
        file.set_permissions(mode)?;
        let Some(temporary) = self.path.as_ref() else { return Ok(()) };
        fs::rename(temporary, path)?;
        self.path = None;
        Ok(())
    }
}

/// Whether the file has the owner and group of the one before now: not everybody may give files away.
fn keeps_owner(file: &File, before: &Metadata) -> io::Result<bool> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) == (before.uid(), before.gid()) {
        return Ok(true);
    }
    match fchown(file, Some(before.uid()), Some(before.gid())) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // What failed is told already.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn replace(path: &Path, content: &str) {
        let Place::File { path, before } = Place::followed(path).unwrap() else {
            panic!("{} is a file", path.display())
        };
        let (temporary, mut file) = Temporary::beside(&path).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        temporary.take_place(&file, &path, before.as_ref(), Permissions::from_mode(0o751)).unwrap();
    }

    #[test]
    fn a_file_is_replaced_where_the_links_lead_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let (file, link) = (dir.path().join("sub/file"), dir.path().join("link"));
        symlink("sub/file", &link).unwrap();
        replace(&link, "new");
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("new", 0o751), "a dangling link too");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        replace(&link, "newer");
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("newer", 0o640));
        assert_eq!(
            (names(dir.path()), names(&dir.path().join("sub"))),
            (vec!["link".into(), "sub".into()], vec!["file".into()])
        );
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_link_that_is_not_followed_is_replaced_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "kept").unwrap();
        for target in ["file", "none", "/dev/null", "."] {
            symlink(target, &link).unwrap();
            assert!(no_follow().open(&link).is_err(), "{target}");
            let Place::File { path, before: None } = Place::itself(&link).unwrap() else { panic!("{target}") };
            let (temporary, made) = Temporary::beside(&path).unwrap();
            temporary.take_place(&made, &path, None, Permissions::from_mode(0o600)).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_file());
            fs::remove_file(&link).unwrap();
        }
        assert_eq!((names(dir.path()), fs::read_to_string(&file).unwrap().as_str()), (vec!["file".into()], "kept"));
        assert!(matches!(Place::itself(&file), Ok(Place::File { before: Some(_), .. })));
        assert!(matches!(Place::itself(dir.path()), Ok(Place::Other)));
    }

    #[test]
    fn what_is_given_up_leaves_all_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "old").unwrap();
        let (temporary, mut half) = Temporary::beside(&file).unwrap();
        half.write_all(b"ne").unwrap();
        assert_eq!((names(dir.path()).len(), half.metadata().unwrap().mode() & 0o777), (2, 0o600));
        drop(temporary);
        assert_eq!((names(dir.path()), fs::read_to_string(&file).unwrap().as_str()), (vec!["file".into()], "old"));
    }

    #[test]
    fn what_is_no_file_is_written_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for other in [Path::new("/dev/null"), Path::new("/dev/stdout"), Path::new("/proc/self/fd/1"), dir.path()] {
            assert!(matches!(Place::followed(other), Ok(Place::Other)), "{}", other.display());
        }
        assert!(
            matches!(Place::followed(&dir.path().join("new/")), Ok(Place::Other)),
            "its opening says what is wrong"
        );
        assert_eq!(Place::followed(&dir.path().join("none/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(Place::followed(&dir.path().join("loop")).is_err());
    }
}
