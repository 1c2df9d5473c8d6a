//! Compares what a target holds with what was acknowledged before a crash.

use std::collections::BTreeSet;

use pando_proto::Errno;

use super::acks::Acks;
use super::{Mismatches, client_seed};
use crate::clients;
use crate::model::{FileNode, Model, Node, NodeId, ROOT};
use crate::report::{Mismatch, PhaseReport, Report};
use crate::state::State;
use crate::target::{Failure, Session, Target};
use crate::trace::{Attributes, Kind, OpenFlags, PhaseName, Trace};

const PIECE: u64 = 1 << 20;

/// The tree as it was acknowledged, and as it is if the operation under way happened too.
struct Expected {
    before: Model,
    after: Model,
}

/// Checks all clients' trees.
///
/// Errors: the list does not fit the trace, or a session cannot be had. What is missing or wrong is counted in the report.
pub fn run<T: Target>(target: &T, trace: &Trace, acks: &Acks, threads: usize) -> anyhow::Result<Report> {
    if let Some(client) = acks.mismatched.first() {
        anyhow::bail!("client {client} had wrong results before the crash: what it must find is not known");
    }
    let mismatches = Mismatches::default();
    let count = acks.header.clients;
    let threads = if target.blocks() { count } else { threads };
    let start = std::time::Instant::now();
    let walks = clients::run(count, threads, |number| walk(target, trace, acks, number, &mismatches))?;
    let mut report = Report::new("verify-acks", target.describe(), count);
    let mut checked = 0;
    for walked in walks {
        let (nodes, bytes) = walked?;
        checked += nodes;
        report.bytes_verified += bytes;
    }
    report.phases.push(PhaseReport::new("verify", start.elapsed().as_secs_f64(), checked));
    report.sum_up();
    mismatches.report(&mut report);
    report.extra.insert("acknowledged".into(), acks.count.into());
    Ok(report)
}

fn expected(trace: &Trace, acks: &Acks, client: usize, last: u32) -> Expected {
    let mut state = State::new(client_seed(acks.header.seed, client));
    let replayed = &acks.header.phases;
    let first = replayed.first().copied().unwrap_or(PhaseName::Unpack);
    for phase in &trace.phases {
        // What comes before the first one was replayed by an earlier run. All else never was: nothing of it has happened.
        let recorded = replayed.contains(&phase.name);
        if !recorded && phase.name >= first {
            continue;
        }
        for operation in &phase.operations {
            if recorded && operation.line > last && operation.mutated() {
                let before = state.model.clone();
                state.replay(trace, operation);
                return Expected { before, after: state.model };
            }
            state.replay(trace, operation);
        }
        state.end_phase();
    }
    Expected { before: state.model.clone(), after: state.model }
}

async fn walk<T: Target>(
    target: &T,
    trace: &Trace,
    acks: &Acks,
    client: usize,
    mismatches: &Mismatches,
) -> anyhow::Result<(u64, u64)> {
    let Some(last) = acks.last[client] else { return Ok((0, 0)) };
    let expected = expected(trace, acks, client, last);
    let session = target.session(client).await?;
    let mut walker = Walker { session, expected: &expected, client, last, mismatches, nodes: 0, bytes: 0 };
    let mut todo = vec![(".".to_owned(), Some(ROOT), Some(ROOT))];
    while let Some((path, before, after)) = todo.pop() {
        walker.check(&path, before, after, &mut todo).await?;
    }
    let (nodes, bytes) = (walker.nodes, walker.bytes);
    walker.session.end().await?;
    Ok((nodes, bytes))
}

type Pair = (String, Option<NodeId>, Option<NodeId>);

struct Walker<'a, S> {
    session: S,
    expected: &'a Expected,
    client: usize,
    last: u32,
    mismatches: &'a Mismatches,
    nodes: u64,
    bytes: u64,
}

impl<S: Session> Walker<'_, S> {
    fn wrong(&self, path: &str, expected: impl Into<String>, got: impl Into<String>) {
        self.mismatches.add(Mismatch {
            client: self.client,
            line: self.last,
            operation: format!("verify {path}"),
            expected: expected.into(),
            got: got.into(),
        });
    }

    async fn check(
        &mut self,
        path: &str,
        before: Option<NodeId>,
        after: Option<NodeId>,
        todo: &mut Vec<Pair>,
    ) -> anyhow::Result<()> {
        self.nodes += 1;
        let old = before.and_then(|id| self.expected.before.node(id));
        let new = after.and_then(|id| self.expected.after.node(id));
        let found = match self.session.stat(path, false).await {
            Ok(found) => found,
            Err(failure) if failure.errno == Errno::ENOENT => {
                if old.is_some() && new.is_some() {
                    self.wrong(path, "what was acknowledged", "ENOENT");
                }
                return Ok(());
            }
            Err(failure) => return self.failed(path, failure),
        };
        let fits = |node: Option<&Node>| node.is_some_and(|node| node.kind() == found.kind);
        if !fits(old) && !fits(new) {
            let kind = old.or(new).map(|node| format!("{:?}", node.kind()));
            self.wrong(path, kind.unwrap_or_else(|| "nothing".to_owned()), format!("{:?}", found.kind));
            return Ok(());
        }
        match found.kind {
            Kind::Dir => self.check_dir(path, old, new, todo).await,
            Kind::Symlink => self.check_symlink(path, old, new).await,
            Kind::File => self.check_file(path, old, new, found).await,
        }
    }

    fn failed(&self, path: &str, failure: Failure) -> anyhow::Result<()> {
        if failure.is_unreachable() {
            anyhow::bail!("{path}: {failure}");
        }
        self.wrong(path, "what was acknowledged", failure.to_string());
        Ok(())
    }

    async fn check_dir(
        &mut self,
        path: &str,
        old: Option<&Node>,
        new: Option<&Node>,
        todo: &mut Vec<Pair>,
    ) -> anyhow::Result<()> {
        let entries = |node: Option<&Node>| match node {
            Some(Node::Dir { entries, .. }) => entries.clone(),
            _ => Default::default(),
        };
        let (old, new) = (entries(old), entries(new));
        let got: BTreeSet<String> = match self.session.list(path).await {
            Ok(names) => names.into_iter().collect(),
            Err(failure) => return self.failed(path, failure),
        };
        for name in &got {
            if !old.contains_key(name.as_str()) && !new.contains_key(name.as_str()) {
                self.wrong(path, "no such name", format!("the name {name}"));
            }
        }
        let names: BTreeSet<&str> = old.keys().chain(new.keys()).map(|name| &**name).collect();
        for name in names {
            let (before, after) = (old.get(name).copied(), new.get(name).copied());
            if before.is_some() && after.is_some() && !got.contains(name) {
                self.wrong(path, format!("the name {name}"), "a listing without it");
            }
            let child = if path == "." { name.to_owned() } else { format!("{path}/{name}") };
            todo.push((child, before, after));
        }
        Ok(())
    }

    async fn check_symlink(&mut self, path: &str, old: Option<&Node>, new: Option<&Node>) -> anyhow::Result<()> {
        let target = match self.session.readlink(path).await {
            Ok(target) => target,
            Err(failure) => return self.failed(path, failure),
        };
        let fits = |node: Option<&Node>| matches!(node, Some(Node::Symlink(expected)) if **expected == *target);
        if !fits(old) && !fits(new) {
            self.wrong(path, "the target that was acknowledged", target);
        }
        Ok(())
    }

    /// Each byte must be the old or the new one; where the file was being changed also a zero of the space between.
    async fn check_file(
        &mut self,
        path: &str,
        old: Option<&Node>,
        new: Option<&Node>,
        found: Attributes,
    ) -> anyhow::Result<()> {
        let (old, new): (Option<&FileNode>, Option<&FileNode>) = (file_of(old), file_of(new));
        let size = |file: Option<&FileNode>| file.map_or(0, |file| file.content.size());
        let (least, most) = (size(old).min(size(new)), size(old).max(size(new)));
        if found.size < least || found.size > most {
            self.wrong(path, format!("{least} to {most} bytes"), format!("{} bytes", found.size));
            return Ok(());
        }
        let mut handle = match self.session.open(path, OpenFlags(OpenFlags::READ), 0).await {
            Ok(handle) => handle,
            Err(failure) => return self.failed(path, failure),
        };
        let untouched = old.map(|file| &file.content) == new.map(|file| &file.content);
        let mut offset = 0;
        while offset < found.size {
            let read = self.session.read_at(&mut handle, offset, PIECE.min(found.size - offset)).await;
            let bytes = match read {
                Ok([]) => {
                    self.wrong(path, format!("{} bytes", found.size), format!("the end at {offset}"));
                    break;
                }
                Ok(bytes) => bytes,
                Err(failure) => {
                    self.failed(path, failure)?;
                    break;
                }
            };
            let length = bytes.len();
            if let Some((at, byte)) = first_wrong(old, new, untouched, offset, bytes) {
                self.wrong(path, format!("the bytes acknowledged at {at}"), format!("byte {byte:#04x}"));
                break;
            }
            self.bytes += length as u64;
            offset += length as u64;
        }
        if let Err(failure) = self.session.close(handle).await {
            self.failed(path, failure)?;
        }
        Ok(())
    }
}

fn file_of(node: Option<&Node>) -> Option<&FileNode> {
    match node {
        Some(Node::File(file)) => Some(file),
        _ => None,
    }
}

fn first_wrong(
    old: Option<&FileNode>,
    new: Option<&FileNode>,
    untouched: bool,
    offset: u64,
    bytes: &[u8],
) -> Option<(u64, u8)> {
    let fill = |file: Option<&FileNode>| {
        let mut expected = vec![0; bytes.len()];
        if let Some(file) = file {
            file.content.fill(offset, &mut expected);
        }
        expected
    };
    let old = fill(old);
    if old == bytes {
        return None;
    }
    let new = fill(new);
    let right = |i: usize| bytes[i] == old[i] || (!untouched && (bytes[i] == new[i] || bytes[i] == 0));
    (0..bytes.len()).find(|i| !right(*i)).map(|i| (offset + i as u64, bytes[i]))
}
