//! Recorded file operations (`traces/README.md` describes the format).

mod parse;
mod source;

use pando_proto::Errno;

pub use parse::{MAX_CALL_BYTES, Problem, TraceError, parse};
pub use source::{LoadError, Source, load};

/// A path, or the target of a symlink, as an index into [`Trace::paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// Number of an open file within a phase.
pub type HandleId = u32;

/// What kind of thing a `stat` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symlink.
    Symlink,
}

/// Kind and, for files, size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its kind.
    pub kind: Kind,
    /// Its size in bytes; 0 for anything but files.
    pub size: u64,
}

/// Flags of an `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u16);

impl OpenFlags {
    /// May be read.
    pub const READ: u16 = 1;
    /// May be written.
    pub const WRITE: u16 = 2;
    /// `O_CREAT`
    pub const CREATE: u16 = 4;
    /// `O_EXCL`
    pub const EXCLUSIVE: u16 = 8;
    /// `O_TRUNC`
    pub const TRUNCATE: u16 = 16;
    /// `O_APPEND`
    pub const APPEND: u16 = 32;
    /// `O_DIRECTORY`
    pub const DIRECTORY: u16 = 64;
    /// `O_NOFOLLOW`
    pub const NO_FOLLOW: u16 = 128;

    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: u16) -> bool {
        self.0 & flag == flag
    }
}

/// One file operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the columns of the format
pub enum Call {
    Mkdir {
        path: PathId,
        mode: u32,
    },
    /// Create, write `size` bytes, close.
    Create {
        path: PathId,
        mode: u32,
        size: u64,
    },
    Symlink {
        target: PathId,
        path: PathId,
    },
    Open {
        path: PathId,
        flags: OpenFlags,
        mode: u32,
    },
    Close {
        handle: HandleId,
    },
    Read {
        handle: HandleId,
        count: u64,
    },
    Pread {
        handle: HandleId,
        count: u64,
        offset: u64,
    },
    /// As many bytes as the recorded result says.
    Write {
        handle: HandleId,
    },
    Pwrite {
        handle: HandleId,
        offset: u64,
    },
    Seek {
        handle: HandleId,
    },
    Ftruncate {
        handle: HandleId,
        size: u64,
    },
    Truncate {
        path: PathId,
        size: u64,
    },
    Fsync {
        handle: HandleId,
    },
    Getdents {
        handle: HandleId,
    },
    Stat {
        path: PathId,
        follow: bool,
        found: Option<Attributes>,
    },
    Fstat {
        handle: HandleId,
        found: Option<Attributes>,
    },
    /// `mask`: R 4, W 2, X 1, existence 0.
    Access {
        path: PathId,
        mask: u8,
    },
    Readlink {
        path: PathId,
    },
    Rmdir {
        path: PathId,
    },
    Unlink {
        path: PathId,
    },
    Rename {
        old: PathId,
        new: PathId,
        no_replace: bool,
    },
    Link {
        old: PathId,
        new: PathId,
    },
    Chmod {
        path: PathId,
        mode: u32,
    },
    Fchmod {
        handle: HandleId,
        mode: u32,
    },
    Fchown {
        handle: HandleId,
    },
    Utimens {
        path: PathId,
    },
    Futimens {
        handle: HandleId,
    },
}

impl Call {
    /// The word of reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mkdir { .. } => "mkdir",
            Self::Create { .. } => "create",
            Self::Symlink { .. } => "symlink",
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::Read { .. } => "read",
            Self::Pread { .. } => "pread",
            Self::Write { .. } => "write",
            Self::Pwrite { .. } => "pwrite",
            Self::Seek { .. } => "seek",
            Self::Ftruncate { .. } => "ftruncate",
            Self::Truncate { .. } => "truncate",
            Self::Fsync { .. } => "fsync",
            Self::Getdents { .. } => "getdents",
            Self::Stat { follow: true, .. } => "stat",
            Self::Stat { .. } => "lstat",
            Self::Fstat { .. } => "fstat",
            Self::Access { .. } => "access",
            Self::Readlink { .. } => "readlink",
            Self::Rmdir { .. } => "rmdir",
            Self::Unlink { .. } => "unlink",
            Self::Rename { no_replace: false, .. } => "rename",
            Self::Rename { .. } => "renamenx",
            Self::Link { .. } => "link",
            Self::Chmod { .. } => "chmod",
            Self::Fchmod { .. } => "fchmod",
            Self::Fchown { .. } => "fchown",
            Self::Utimens { .. } => "utimens",
            Self::Futimens { .. } => "futimens",
        }
    }

    /// Whether its success changes names, sizes or contents.
    pub fn mutates(&self) -> bool {
        match self {
            Self::Open { flags, .. } => flags.0 & (OpenFlags::CREATE | OpenFlags::TRUNCATE) != 0,
            Self::Mkdir { .. } | Self::Create { .. } | Self::Symlink { .. } | Self::Rmdir { .. } => true,
            Self::Write { .. } | Self::Pwrite { .. } | Self::Ftruncate { .. } | Self::Truncate { .. } => true,
            Self::Unlink { .. } | Self::Rename { .. } | Self::Link { .. } => true,
            _ => false,
        }
    }

    /// The handle it uses.
    pub fn handle(&self) -> Option<HandleId> {
        match *self {
            Self::Close { handle }
            | Self::Read { handle, .. }
            | Self::Pread { handle, .. }
            | Self::Write { handle }
            | Self::Pwrite { handle, .. }
            | Self::Seek { handle }
            | Self::Ftruncate { handle, .. }
            | Self::Fsync { handle }
            | Self::Getdents { handle }
            | Self::Fstat { handle, .. }
            | Self::Fchmod { handle, .. }
            | Self::Fchown { handle }
            | Self::Futimens { handle } => Some(handle),
            _ => None,
        }
    }

    /// The path it names (the first of two).
    pub fn path(&self) -> Option<PathId> {
        match *self {
            Self::Mkdir { path, .. }
            | Self::Create { path, .. }
            | Self::Symlink { path, .. }
            | Self::Open { path, .. }
            | Self::Truncate { path, .. }
            | Self::Stat { path, .. }
            | Self::Access { path, .. }
            | Self::Readlink { path }
            | Self::Rmdir { path }
            | Self::Unlink { path }
            | Self::Chmod { path, .. }
            | Self::Utimens { path } => Some(path),
            Self::Rename { old, .. } | Self::Link { old, .. } => Some(old),
            _ => None,
        }
    }
}

/// An operation with its recorded result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Line in the trace, from 1.
    pub line: u32,
    /// Recorded result.
    pub expected: Result<u64, Errno>,
    /// What is done.
    pub call: Call,
}

impl Operation {
    /// Whether it changed names, sizes or contents when it was recorded.
    pub fn mutated(&self) -> bool {
        self.expected.is_ok() && self.call.mutates()
    }
}

/// The three parts of a trace.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PhaseName {
    /// The source tree is laid out.
    Unpack,
    /// The build runs.
    Build,
    /// Everything is removed.
    Remove,
}

impl PhaseName {
    /// All, in order.
    pub const ALL: [Self; 3] = [Self::Unpack, Self::Build, Self::Remove];

    /// Its word in the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unpack => "unpack",
            Self::Build => "build",
            Self::Remove => "remove",
        }
    }
}

impl std::fmt::Display for PhaseName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A phase and its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Which.
    pub name: PhaseName,
    /// In the order in which they returned.
    pub operations: Vec<Operation>,
}

/// A whole recording, shared by all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Every path and symlink target once.
    pub paths: Vec<Box<str>>,
    /// In the order of [`PhaseName::ALL`]; some may be missing.
    pub phases: Vec<Phase>,
}

impl Trace {
    /// The text of a path.
    pub fn path(&self, id: PathId) -> &str {
        &self.paths[id.0 as usize]
    }

    /// Operations of the chosen phases.
    pub fn count(&self, phases: &[PhaseName]) -> u64 {
        self.phases.iter().filter(|p| phases.contains(&p.name)).map(|p| p.operations.len() as u64).sum()
    }

    /// An operation as a line of text, for reports.
    pub fn describe(&self, call: &Call) -> String {
        let path = |id: PathId| self.path(id);
        match *call {
            Call::Symlink { target, path: link } => format!("symlink {} -> {}", path(link), path(target)),
            Call::Rename { old, new, .. } | Call::Link { old, new } => {
                format!("{} {} {}", call.name(), path(old), path(new))
            }
            Call::Create { path: file, size, .. } => format!("create {} of {size} bytes", path(file)),
            Call::Read { handle, count } => format!("read handle {handle}, {count} bytes"),
            Call::Pread { handle, count, offset } => format!("pread handle {handle}, {count} bytes at {offset}"),
            Call::Pwrite { handle, offset } => format!("pwrite handle {handle} at {offset}"),
            Call::Ftruncate { handle, size } => format!("ftruncate handle {handle} to {size}"),
            Call::Truncate { path: file, size } => format!("truncate {} to {size}", path(file)),
            _ => match (call.path(), call.handle()) {
                (Some(id), _) => format!("{} {}", call.name(), path(id)),
                (None, Some(handle)) => format!("{} handle {handle}", call.name()),
                (None, None) => call.name().to_owned(),
            },
        }
    }
}
