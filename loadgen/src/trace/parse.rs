//! Reads the format, trusting nothing in it.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, Read as _};

use pando_proto::{Errno, MAX_NAME_BYTES, MAX_PATH_BYTES};

use super::{Attributes, Call, HandleId, Kind, OpenFlags, Operation, PathId, Phase, PhaseName, Trace};

const FIRST_LINE: &str = "# fstrace 1";
const MAX_LINE: u64 = 16 << 10;
const MAX_OPERATIONS: usize = 64 << 20;
const MAX_HANDLE: u64 = 1 << 20;
/// Most bytes one read or write may ask for.
pub const MAX_CALL_BYTES: u64 = 256 << 20;
const MAX_FILE_BYTES: u64 = 1 << 43;

/// A line that does not follow the format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("trace line {line}: {problem}")]
pub struct TraceError {
    /// From 1; the last line read if the whole is wrong.
    pub line: u32,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a trace.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Problem {
    #[error("cannot be read: {0}")]
    Io(String),
    #[error("a trace starts with `# fstrace 1`")]
    NotATrace,
    #[error("longer than 16 KiB")]
    LineTooLong,
    #[error("no valid UTF-8")]
    NotUtf8,
    #[error("`{0}` is no operation of this phase")]
    UnknownOperation(String),
    #[error("{name} takes {expected} columns, not {found}")]
    Columns { name: String, expected: &'static str, found: usize },
    #[error("`{text}` is no {what}")]
    Number { what: &'static str, text: String },
    #[error("{what} {value} is beyond {limit}")]
    TooLarge { what: &'static str, value: u64, limit: u64 },
    #[error("`{0}` is neither a number nor the name of an error")]
    Result(String),
    #[error("a failed {0} has no length to replay")]
    NoLength(&'static str),
    #[error("path `{path}`: {why}")]
    Path { path: String, why: &'static str },
    #[error("`{0}` is no set of open flags")]
    Flags(String),
    #[error("`{0}` is none of f, d, l with what belongs to it")]
    Kind(String),
    #[error("`{0}` is no access mode")]
    Access(String),
    #[error("phase `{0}` is unknown, doubled or out of order")]
    Phase(String),
    #[error("an operation before the first phase")]
    NoPhase,
    #[error("phase {name} announces {announced} operations and has {found}")]
    Count { name: &'static str, announced: u64, found: u64 },
    #[error("handle {0} is not open")]
    NotOpen(u64),
    #[error("handle {0} is 0 or open already")]
    HandleInUse(u64),
    #[error("more than {MAX_OPERATIONS} operations")]
    TooMany,
}

/// Reads a whole trace.
///
/// Errors: the first line that does not follow the format.
pub fn parse(mut input: impl BufRead) -> Result<Trace, TraceError> {
    let mut parser = Parser::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
        parser.line += 1;
        match read {
            Err(error) => return Err(parser.error(Problem::Io(error.to_string()))),
            Ok(0) => break,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 > MAX_LINE {
            return Err(parser.error(Problem::LineTooLong));
        }
        let text = std::str::from_utf8(&line).map_err(|_| parser.error(Problem::NotUtf8))?;
        parser.take_line(text).map_err(|problem| parser.error(problem))?;
    }
    parser.end_phase().map_err(|problem| parser.error(problem))?;
    if parser.line == 1 {
        return Err(parser.error(Problem::NotATrace));
    }
    Ok(parser.trace)
}

#[derive(Default)]
struct Parser {
    line: u32,
    trace: Trace,
    ids: HashMap<Box<str>, PathId>,
    announced: u64,
    operations: usize,
    open: BTreeSet<HandleId>,
}

impl Parser {
    fn error(&self, problem: Problem) -> TraceError {
        TraceError { line: self.line, problem }
    }

    fn take_line(&mut self, text: &str) -> Result<(), Problem> {
        if self.line == 1 {
            return if text == FIRST_LINE { Ok(()) } else { Err(Problem::NotATrace) };
        }
        if let Some(header) = text.strip_prefix('#') {
            return match header.strip_prefix(" phase ") {
                Some(phase) => self.start_phase(phase),
                None => Ok(()),
            };
        }
        self.operations += 1;
        if self.operations > MAX_OPERATIONS {
            return Err(Problem::TooMany);
        }
        let phase = self.trace.phases.last().ok_or(Problem::NoPhase)?.name;
        let columns: Vec<&str> = text.split('\t').collect();
        let (expected, call) = match phase {
            PhaseName::Unpack => (Ok(0), self.unpacking(&columns)?),
            PhaseName::Build | PhaseName::Remove => self.recorded(&columns)?,
        };
        let operation = Operation { line: self.line, expected, call };
        if let Some(phase) = self.trace.phases.last_mut() {
            phase.operations.push(operation);
        }
        Ok(())
    }

    fn start_phase(&mut self, text: &str) -> Result<(), Problem> {
        self.end_phase()?;
        let wrong = || Problem::Phase(text.to_owned());
        let (name, count) = text.split_once(' ').ok_or_else(wrong)?;
        let name = PhaseName::ALL.into_iter().find(|phase| phase.as_str() == name).ok_or_else(wrong)?;
        if self.trace.phases.last().is_some_and(|last| last.name >= name) {
            return Err(wrong());
        }
        self.announced = number(count, "count", MAX_OPERATIONS as u64)?;
        self.open.clear();
        self.trace.phases.push(Phase { name, operations: Vec::new() });
        Ok(())
    }

    fn end_phase(&mut self) -> Result<(), Problem> {
        let Some(phase) = self.trace.phases.last_mut() else { return Ok(()) };
        let found = phase.operations.len() as u64;
        if found != self.announced {
            return Err(Problem::Count { name: phase.name.as_str(), announced: self.announced, found });
        }
        phase.operations.shrink_to_fit();
        Ok(())
    }

    fn unpacking(&mut self, columns: &[&str]) -> Result<Call, Problem> {
        Ok(match *columns {
            ["M", path, mode] => Call::Mkdir { path: self.path(path)?, mode: octal(mode)? },
            ["W", path, mode, size] => {
                Call::Create { path: self.path(path)?, mode: octal(mode)?, size: number(size, "size", MAX_FILE_BYTES)? }
            }
            ["S", path, target] => Call::Symlink { target: self.link_target(path, target)?, path: self.path(path)? },
            _ => return Err(unknown(columns, &[("M", "3"), ("W", "4"), ("S", "3")])),
        })
    }

    fn recorded(&mut self, columns: &[&str]) -> Result<(Result<u64, Errno>, Call), Problem> {
        let &[name, result, ref rest @ ..] = columns else { return Err(unknown(columns, RECORDED)) };
        let expected = recorded_result(result)?;
        let call = match self.by_handle(name, rest, expected)? {
            Some(call) => call,
            None => self.by_path(columns, name, rest, expected)?,
        };
        match call {
            Call::Open { .. } => self.opened(expected)?,
            Call::Close { handle } if expected.is_ok() => {
                self.open.remove(&handle);
            }
            _ => {}
        }
        Ok((expected, call))
    }

    fn by_handle(&mut self, name: &str, rest: &[&str], expected: Result<u64, Errno>) -> Result<Option<Call>, Problem> {
        let length = |name| match expected {
            Ok(length) if length <= MAX_CALL_BYTES => Ok(()),
            Ok(value) => Err(Problem::TooLarge { what: "length", value, limit: MAX_CALL_BYTES }),
            Err(_) => Err(Problem::NoLength(name)),
        };
        Ok(Some(match (name, rest) {
            ("close", [handle]) => Call::Close { handle: self.handle(handle)? },
            ("read", [handle, count]) => Call::Read { handle: self.handle(handle)?, count: count_of(count)? },
            ("pread", [handle, count, offset]) => Call::Pread {
                handle: self.handle(handle)?,
                count: count_of(count)?,
                offset: number(offset, "offset", MAX_FILE_BYTES)?,
            },
            ("write", [handle]) => {
                length("write")?;
                Call::Write { handle: self.handle(handle)? }
            }
            ("pwrite", [handle, offset]) => {
                length("pwrite")?;
                Call::Pwrite { handle: self.handle(handle)?, offset: number(offset, "offset", MAX_FILE_BYTES)? }
            }
            ("seek", [handle]) => match expected {
                Ok(value) if value > MAX_FILE_BYTES => {
                    return Err(Problem::TooLarge { what: "offset", value, limit: MAX_FILE_BYTES });
                }
                Ok(_) => Call::Seek { handle: self.handle(handle)? },
                Err(_) => return Err(Problem::NoLength("seek")),
            },
            ("ftruncate", [handle, size]) => {
                Call::Ftruncate { handle: self.handle(handle)?, size: number(size, "size", MAX_FILE_BYTES)? }
            }
            ("fsync", [handle]) => Call::Fsync { handle: self.handle(handle)? },
            ("getdents", [handle]) => Call::Getdents { handle: self.handle(handle)? },
            ("fstat", [handle, found @ ..]) => {
                Call::Fstat { handle: self.handle(handle)?, found: attributes(found, expected.is_ok())? }
            }
            ("fchmod", [handle, mode]) => Call::Fchmod { handle: self.handle(handle)?, mode: octal(mode)? },
            ("fchown", [handle]) => Call::Fchown { handle: self.handle(handle)? },
            ("futimens", [handle]) => Call::Futimens { handle: self.handle(handle)? },
            _ => return Ok(None),
        }))
    }

    fn by_path(
        &mut self,
        columns: &[&str],
        name: &str,
        rest: &[&str],
        expected: Result<u64, Errno>,
    ) -> Result<Call, Problem> {
        Ok(match (name, rest) {
            ("open", [path, names, mode]) => {
                let flags = open_flags(names)?;
                let mode = if *mode == "-" { 0 } else { octal(mode)? };
                Call::Open { path: self.path(path)?, flags, mode }
            }
            ("truncate", [path, size]) => {
                Call::Truncate { path: self.path(path)?, size: number(size, "size", MAX_FILE_BYTES)? }
            }
            ("stat" | "lstat", [path, found @ ..]) => Call::Stat {
                path: self.path(path)?,
                follow: name == "stat",
                found: attributes(found, expected.is_ok())?,
            },
            ("access", [path, how]) => Call::Access { path: self.path(path)?, mask: access_mask(how)? },
            ("readlink", [path]) => Call::Readlink { path: self.path(path)? },
            ("mkdir", [path, mode]) => Call::Mkdir { path: self.path(path)?, mode: octal(mode)? },
            ("rmdir", [path]) => Call::Rmdir { path: self.path(path)? },
            ("unlink", [path]) => Call::Unlink { path: self.path(path)? },
            ("rename" | "renamenx", [old, new]) => {
                Call::Rename { old: self.path(old)?, new: self.path(new)?, no_replace: name == "renamenx" }
            }
            ("link", [old, new]) => Call::Link { old: self.path(old)?, new: self.path(new)? },
            ("symlink", [target, path]) => {
                Call::Symlink { target: self.link_target(path, target)?, path: self.path(path)? }
            }
            ("chmod", [path, mode]) => Call::Chmod { path: self.path(path)?, mode: octal(mode)? },
            ("utimens", [path]) => Call::Utimens { path: self.path(path)? },
            _ => return Err(unknown(columns, RECORDED)),
        })
    }

    fn opened(&mut self, expected: Result<u64, Errno>) -> Result<(), Problem> {
        let Ok(handle) = expected else { return Ok(()) };
        if handle == 0 || handle > MAX_HANDLE || !self.open.insert(handle as HandleId) {
            return Err(Problem::HandleInUse(handle));
        }
        Ok(())
    }

    fn handle(&self, text: &str) -> Result<HandleId, Problem> {
        let handle = number(text, "handle", MAX_HANDLE)?;
        let id = handle as HandleId;
        if self.open.contains(&id) { Ok(id) } else { Err(Problem::NotOpen(handle)) }
    }

    fn path(&mut self, text: &str) -> Result<PathId, Problem> {
        check_path(text)?;
        Ok(self.intern(text))
    }

    /// A target must stay in the tree: relative, with `..` at its start only and not beyond the root.
    fn link_target(&mut self, link: &str, target: &str) -> Result<PathId, Problem> {
        let wrong = |why| Problem::Path { path: target.to_owned(), why };
        if target.is_empty() || target.len() > MAX_PATH_BYTES || target.contains('\0') {
            return Err(wrong("a symlink target has 1 to 4095 bytes without NUL"));
        }
        let ups = target.split('/').take_while(|part| *part == "..").count();
        if target.starts_with('/') || target.split('/').skip(ups).any(|part| part == "..") {
            return Err(wrong("a symlink target that may leave the tree is not replayed"));
        }
        if ups > link.matches('/').count() {
            return Err(wrong("a symlink target must not lead above the root"));
        }
        Ok(self.intern(target))
    }

    fn intern(&mut self, text: &str) -> PathId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        // At most two paths an operation, and operations are limited: fits.
        let id = PathId(self.trace.paths.len() as u32);
        self.trace.paths.push(text.into());
        self.ids.insert(text.into(), id);
        id
    }
}

/// Operations with their numbers of columns.
const RECORDED: &[(&str, &str)] = &[
    ("open", "5"),
    ("close", "3"),
    ("read", "4"),
    ("pread", "5"),
    ("write", "3"),
    ("pwrite", "4"),
    ("seek", "3"),
    ("ftruncate", "4"),
    ("truncate", "4"),
    ("fsync", "3"),
    ("getdents", "3"),
    ("stat", "3 to 5"),
    ("lstat", "3 to 5"),
    ("fstat", "3 to 5"),
    ("access", "4"),
    ("readlink", "3"),
    ("mkdir", "4"),
    ("rmdir", "3"),
    ("unlink", "3"),
    ("rename", "4"),
    ("renamenx", "4"),
    ("link", "4"),
    ("symlink", "4"),
    ("chmod", "4"),
    ("fchmod", "4"),
    ("fchown", "3"),
    ("utimens", "3"),
    ("futimens", "3"),
];

fn unknown(columns: &[&str], known: &'static [(&str, &str)]) -> Problem {
    let name = columns.first().copied().unwrap_or_default();
    match known.iter().find(|(word, _)| *word == name) {
        Some((_, expected)) => Problem::Columns { name: name.to_owned(), expected, found: columns.len() },
        None => Problem::UnknownOperation(excerpt(name)),
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

fn check_path(text: &str) -> Result<(), Problem> {
    let wrong = |why| Err(Problem::Path { path: excerpt(text), why });
    // The empty path is what a program looks up that found no name: ENOENT.
    if text.is_empty() || text == "." {
        return Ok(());
    }
    if text.len() > MAX_PATH_BYTES || text.contains('\0') {
        return wrong("a path has at most 4095 bytes, without NUL");
    }
    for part in text.split('/') {
        match part {
            "" => return wrong("must be relative, without doubled or trailing slashes"),
            "." | ".." => return wrong("`.` and `..` are not replayed: they may leave the tree"),
            _ if part.len() > MAX_NAME_BYTES => return wrong("a name has at most 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

fn number(text: &str, what: &'static str, limit: u64) -> Result<u64, Problem> {
    let value = digits(text)
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Problem::Number { what, text: excerpt(text) })?;
    if value > limit { Err(Problem::TooLarge { what, value, limit }) } else { Ok(value) }
}

fn count_of(text: &str) -> Result<u64, Problem> {
    number(text, "count", MAX_CALL_BYTES)
}

/// The permission bits of an octal mode; some programs pass the file type along.
fn octal(text: &str) -> Result<u32, Problem> {
    let mode = digits(text).and_then(|digits| u32::from_str_radix(digits, 8).ok()).filter(|mode| *mode <= 0o177_777);
    mode.map(|mode| mode & 0o7777).ok_or_else(|| Problem::Number { what: "octal mode", text: excerpt(text) })
}

fn recorded_result(text: &str) -> Result<Result<u64, Errno>, Problem> {
    if digits(text).is_some() {
        return Ok(Ok(number(text, "result", u64::MAX)?));
    }
    Errno::from_name(text).map(Err).ok_or_else(|| Problem::Result(excerpt(text)))
}

fn open_flags(text: &str) -> Result<OpenFlags, Problem> {
    let mut bits = 0;
    let mut modes = 0;
    for name in text.split('|') {
        let (bit, is_mode) = match name {
            "O_RDONLY" => (OpenFlags::READ, 1),
            "O_WRONLY" => (OpenFlags::WRITE, 1),
            "O_RDWR" => (OpenFlags::READ | OpenFlags::WRITE, 1),
            "O_CREAT" => (OpenFlags::CREATE, 0),
            "O_EXCL" => (OpenFlags::EXCLUSIVE, 0),
            "O_TRUNC" => (OpenFlags::TRUNCATE, 0),
            "O_APPEND" => (OpenFlags::APPEND, 0),
            "O_DIRECTORY" => (OpenFlags::DIRECTORY, 0),
            "O_NOFOLLOW" => (OpenFlags::NO_FOLLOW, 0),
            _ => return Err(Problem::Flags(excerpt(text))),
        };
        bits |= bit;
        modes += is_mode;
    }
    if modes == 1 { Ok(OpenFlags(bits)) } else { Err(Problem::Flags(excerpt(text))) }
}

fn attributes(found: &[&str], succeeded: bool) -> Result<Option<Attributes>, Problem> {
    Ok(match (found, succeeded) {
        ([], false) => None,
        (["f", size], true) => Some(Attributes { kind: Kind::File, size: number(size, "size", MAX_FILE_BYTES)? }),
        (["d"], true) => Some(Attributes { kind: Kind::Dir, size: 0 }),
        (["l"], true) => Some(Attributes { kind: Kind::Symlink, size: 0 }),
        _ => return Err(Problem::Kind(excerpt(&found.join(" ")))),
    })
}

fn access_mask(text: &str) -> Result<u8, Problem> {
    let mut mask = 0;
    for letter in text.chars() {
        mask |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            'f' if text == "f" => 0,
            _ => return Err(Problem::Access(excerpt(text))),
        };
    }
    if text.is_empty() { Err(Problem::Access(String::new())) } else { Ok(mask) }
}
