//! Where traces come from.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::str::FromStr;

use super::{Trace, TraceError, parse};

const SMALL: &[u8] = include_bytes!("../../traces/kernel-small.trace.zst");
const MEDIUM: &[u8] = include_bytes!("../../traces/kernel-medium.trace.zst");
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Most text a trace may hold, against files that decompress without end.
const MAX_TEXT: u64 = 2 << 30;

/// A trace to load: one of the embedded ones or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `kernel-small`
    Small,
    /// `kernel-medium`
    Medium,
    /// Any file of the format, plain or zstd.
    File(PathBuf),
}

impl FromStr for Source {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "small" | "kernel-small" => Self::Small,
            "medium" | "kernel-medium" => Self::Medium,
            file => Self::File(file.into()),
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Small => f.write_str("small"),
            Self::Medium => f.write_str("medium"),
            Self::File(file) => write!(f, "{}", file.display()),
        }
    }
}

/// Why a trace cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read trace {path}: {source}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It looks like zstd but is none.
    #[error("cannot decompress the trace: {0}")]
    Compression(String),
    /// It does not follow the format.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Reads and checks a trace.
pub fn load(source: &Source) -> Result<Trace, LoadError> {
    match source {
        Source::Small => read(SMALL),
        Source::Medium => read(MEDIUM),
        Source::File(path) => {
            let file = std::fs::File::open(path).map_err(|source| LoadError::Open { path: path.clone(), source })?;
            read(BufReader::new(file))
        }
    }
}

fn read(mut input: impl BufRead) -> Result<Trace, LoadError> {
    let head = input.fill_buf().map_err(|error| LoadError::Compression(error.to_string()))?;
    if !head.starts_with(&ZSTD_MAGIC) {
        return Ok(parse(input.take(MAX_TEXT))?);
    }
    let decoder =
        ruzstd::decoding::StreamingDecoder::new(input).map_err(|error| LoadError::Compression(error.to_string()))?;
    Ok(parse(BufReader::with_capacity(1 << 16, decoder.take(MAX_TEXT)))?)
}
