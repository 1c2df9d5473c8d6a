//! The list of acknowledged mutations, for tests that kill servers.
//!
//! JSON lines. First a header `{"loadgen_acks":1,"trace":…,"seed":…,"clients":…,"phases":[…]}`,
//! then one line for each mutation, written when its success had arrived:
//! `{"client":3,"line":812,"op":"unlink","path":"a/b"}` with `new` for a second path and `bytes` for the
//! size or length. `op` is `root` for the client's directory itself and `mismatch` where a result was wrong.
//! A client runs one operation after another in the order of the trace. So what stands after its last line is: all up to
//! that line has happened, the next mutation perhaps, nothing beyond. Contents follow from seed and trace.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Options;
use crate::trace::{Call, Operation, PhaseName, Trace};

const VERSION: u32 = 1;

/// First line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this format.
    pub loadgen_acks: u32,
    /// As given to `--trace`.
    pub trace: String,
    /// Contents follow from it.
    pub seed: u64,
    /// How many.
    pub clients: usize,
    /// Replayed, in order.
    pub phases: Vec<PhaseName>,
}

/// A further line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Who.
    pub client: usize,
    /// Line of the trace.
    pub line: u32,
    /// What.
    pub op: String,
    /// The path concerned, if the operation names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The second path, or the target of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// The handle concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u32>,
    /// Bytes written, or the size set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The file under way. Every line is handed to the system at once, so that it outlives this process.
pub struct AckLog(Mutex<File>);

impl AckLog {
    /// Starts a file with its header.
    pub fn create(path: &Path, options: &Options) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let log = Self(Mutex::new(file));
        log.put(&Header {
            loadgen_acks: VERSION,
            trace: options.trace_name.clone(),
            seed: options.seed,
            clients: options.clients,
            phases: options.phases.clone(),
        })?;
        Ok(log)
    }

    fn put(&self, line: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(file.write_all(&text)?)
    }

    fn event(&self, client: usize, line: u32, op: &str) -> anyhow::Result<()> {
        self.put(&Ack { client, line, op: op.to_owned(), path: None, new: None, handle: None, bytes: None })
    }

    /// The client's directory stands.
    pub fn root(&self, client: usize) -> anyhow::Result<()> {
        self.event(client, 0, "root")
    }

    /// A result was wrong: what the client's tree must be is not known any more.
    pub fn mismatch(&self, client: usize, line: u32) -> anyhow::Result<()> {
        self.event(client, line, "mismatch")
    }

    /// A mutation was acknowledged.
    pub fn acknowledged(&self, client: usize, trace: &Trace, operation: &Operation) -> anyhow::Result<()> {
        let path = |id| Some(trace.path(id).to_owned());
        let (new, bytes) = match operation.call {
            Call::Rename { new, .. } | Call::Link { new, .. } => (path(new), None),
            Call::Symlink { target, .. } => (path(target), None),
            Call::Create { size, .. } | Call::Truncate { size, .. } | Call::Ftruncate { size, .. } => {
                (None, Some(size))
            }
            Call::Write { .. } | Call::Pwrite { .. } => (None, operation.expected.ok()),
            _ => (None, None),
        };
        self.put(&Ack {
            client,
            line: operation.line,
            op: operation.call.name().to_owned(),
            path: operation.call.path().and_then(path),
            new,
            handle: operation.call.handle(),
            bytes,
        })
    }
}

/// What a file of acknowledged mutations says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acks {
    /// Its header.
    pub header: Header,
    /// Last acknowledged line by client; `None`: not even its directory; `Some(0)`: that only.
    pub last: Vec<Option<u32>>,
    /// Clients with wrong results.
    pub mismatched: Vec<usize>,
    /// Acknowledged mutations.
    pub count: u64,
}

impl Acks {
    /// Reads a file. A last line that was cut by a crash of loadgen itself is ignored.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut lines = BufReader::new(file).lines();
        let first = lines.next().context("the list of acknowledged operations is empty")??;
        let header: Header = serde_json::from_str(&first)
            .with_context(|| format!("{} is no list of acknowledged operations", path.display()))?;
        anyhow::ensure!(header.loadgen_acks == VERSION, "version {} of the list is unknown", header.loadgen_acks);
        anyhow::ensure!(header.clients <= 1 << 20, "{} clients are too many", header.clients);
        let mut acks = Self { last: vec![None; header.clients], mismatched: Vec::new(), count: 0, header };
        let mut cut = None;
        for (index, line) in lines.enumerate() {
            anyhow::ensure!(cut.is_none(), "line {} of the list cannot be read", index + 1);
            let ack: Ack = match serde_json::from_str(&line?) {
                Ok(ack) => ack,
                Err(error) => {
                    cut = Some(error);
                    continue;
                }
            };
            let last = acks.last.get_mut(ack.client).with_context(|| format!("there is no client {}", ack.client))?;
            match ack.op.as_str() {
                "mismatch" => acks.mismatched.push(ack.client),
                _ => *last = Some(last.unwrap_or(0).max(ack.line)),
            }
            acks.count += u64::from(ack.op != "mismatch" && ack.op != "root");
        }
        Ok(acks)
    }
}
