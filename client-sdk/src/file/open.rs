//! How to open a file.

use std::ffi::OsStr;
use std::path::Path;

use pando_proto::Errno;
use pando_proto::mds::{OpenFlag, OpenRequest, ReclaimedHandle, operation::Op, operation_result::Result as Answer};

use super::{File, OpenFile};
use crate::client::wrong_answer;
use crate::path::{self, Checked};
use crate::{Client, Dir, Error, Result};

/// Permission bits of a new file unless others are asked for.
pub(crate) const FILE_MODE: u32 = 0o644;

/// How to open a file, in the manner of [`std::fs::OpenOptions`].
///
/// ```
/// # use pando_local_cluster::{LocalCluster, Options};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let options = Options { osds: 1, replicas: 1, ..Options::default() };
/// # let cluster = LocalCluster::start(options.memory()).await?;
/// # let client = pando_client::Client::connect(&cluster.mon_addresses()).await?;
/// use pando_client::OpenOptions;
/// use tokio::io::AsyncReadExt as _;
///
/// let log = OpenOptions::new().append(true).create(true).open(&client, "/log").await?;
/// log.append_at_end("one line\n").await?;
/// log.close().await?;
///
/// let mut text = String::new();
/// client.open("/log").await?.read_to_string(&mut text).await?;
/// assert_eq!(text, "one line\n");
/// # cluster.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    no_follow: bool,
    directory: bool,
    mode: u32,
    size_hint: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! switches {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* pub fn $name(&mut self, yes: bool) -> &mut Self {
            self.$name = yes;
            self
        })*
    };
}

impl OpenOptions {
    /// All switched off, mode 0644.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            no_follow: false,
            directory: false,
            mode: FILE_MODE,
            size_hint: 0,
        }
    }

    switches! {
        /// To read.
        read;
        /// To write.
        write;
        /// To write at the end only.
        append;
        /// Cut to nothing; needs `write`.
        truncate;
        /// Make it if it is not there; needs `write` or `append`.
        create;
        /// Make it; EEXIST if it is there.
        create_new;
        /// ELOOP if the path ends in a symlink.
        no_follow;
        /// ENOTDIR if it is no directory.
        directory;
    }

    /// Permission bits of a file that is made.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Bytes that will be written: a large file then goes to objects at once, and is never moved there.
    pub fn size_hint(&mut self, bytes: u64) -> &mut Self {
        self.size_hint = bytes;
        self
    }

    /// Opens `path`.
    ///
    /// Errors: EINVAL for switches that do not go together; ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP, EACCES, ENOSPC.
    pub async fn open(&self, client: &Client, path: impl AsRef<Path>) -> Result<File> {
        let path = path::check(path.as_ref())?;
        let file = OpenFile::open(client, &path, self).await?;
        Ok(File::new(file, self.append))
    }

    /// Opens a name in a directory.
    ///
    /// Errors: as [`open`](Self::open), and EINVAL for what is no name.
    pub async fn open_in(&self, dir: &Dir, name: impl AsRef<OsStr>) -> Result<File> {
        let file = OpenFile::open(dir.client(), &dir.entry(name.as_ref())?, self).await?;
        Ok(File::new(file, self.append))
    }

    /// The switches as a sum of [`OpenFlag`].
    fn flags(&self) -> Result<u32> {
        let writes = self.write || self.append;
        let nonsense = if !self.read && !writes {
            Some("open needs read, write or append")
        } else if (self.truncate || self.create || self.create_new) && !writes {
            Some("truncate and create need write or append")
        } else if self.append && self.truncate && !self.create_new {
            Some("append and truncate exclude each other")
        } else if self.directory && (writes || self.create || self.create_new) {
            Some("a directory can only be opened to read")
        } else {
            None
        };
        if let Some(text) = nonsense {
            return Err(Error::with_message(Errno::EINVAL, text));
        }
        let bits = [
            (self.read, OpenFlag::Read),
            (writes, OpenFlag::Write),
            (self.append, OpenFlag::Append),
            (self.truncate, OpenFlag::Truncate),
            (self.create || self.create_new, OpenFlag::Create),
            (self.create_new, OpenFlag::Exclusive),
            (self.no_follow, OpenFlag::NoFollow),
            (self.directory, OpenFlag::Directory),
        ];
        Ok(bits.iter().filter(|(on, _)| *on).map(|(_, flag)| *flag as u32).sum())
    }
}

impl Client {
    /// Opens a file to read.
    ///
    /// Errors: ENOENT, EACCES.
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path).await
    }

    /// Opens a file to write, made if it is not there, cut to nothing if it is.
    ///
    /// Errors: ENOENT if the directory is missing, EISDIR, EACCES, ENOSPC.
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path).await
    }
}

impl OpenFile {
    pub(crate) async fn open(client: &Client, path: &Checked, options: &OpenOptions) -> Result<Self> {
        let flags = options.flags().map_err(|error| error.at(path.given()))?;
        let core = client.core();
        let handle = core.new_handle();
        let request = OpenRequest {
            caller: client.caller(),
            target: Some(path.target()),
            handle,
            flags,
            mode: options.mode,
            want_body: false,
            size_hint: options.size_hint,
        };
        let answered = client.run_at(Op::Open(request), path).await?;
        let Answer::Open(answer) = &answered.result else { return Err(wrong_answer(path.given())) };
        let opened = Self::new(client.clone(), handle, path.given().clone(), options.size_hint, answer)?;
        // The rank's next process needs to know what the handle may do, not how it came to be (R19).
        let lasting = OpenFlag::Read as u32 | OpenFlag::Write as u32 | OpenFlag::Append as u32;
        let kept = ReclaimedHandle { handle, ino: opened.ino(), flags: flags & lasting };
        core.keep_handle(kept, &answered, client.deadline()).await.map_err(|error| error.at(path.given()))?;
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_that_do_not_go_together_are_refused() {
        let refused = |set: &dyn Fn(&mut OpenOptions)| {
            let mut options = OpenOptions::new();
            set(&mut options);
            options.flags().is_err()
        };
        assert!(refused(&|_| {}));
        assert!(refused(&|options| {
            options.read(true).create(true);
        }));
        assert!(refused(&|options| {
            options.append(true).truncate(true);
        }));
        assert!(refused(&|options| {
            options.write(true).directory(true);
        }));
        assert!(!refused(&|options| {
            options.append(true).create(true);
        }));
    }
}
