//! A client's model together with its open handles: how each operation changes them.

use std::collections::BTreeMap;

use crate::model::{Model, NodeId};
use crate::trace::{Call, HandleId, OpenFlags, Operation, Trace};

/// A listing under way on an open directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Entries since its start, `.` and `..` included.
    pub got: u64,
    /// Entries recorded since its start.
    pub recorded: u64,
    /// Names since its start.
    pub names: Vec<Box<str>>,
    /// Version of the directory in the model at its start.
    pub version: u64,
    /// The target said 0.
    pub ended: bool,
}

/// An open file.
#[derive(Clone, Debug)]
pub struct OpenFile<H> {
    /// The target's handle.
    pub session: H,
    /// What it is in the model.
    pub node: Option<NodeId>,
    /// Where `read` and `write` go on.
    pub offset: u64,
    /// Writes go to the end.
    pub append: bool,
    /// Of a directory.
    pub listing: Listing,
}

/// All that is known of one client's tree.
#[derive(Clone, Debug)]
pub struct State<H> {
    /// Names and contents.
    pub model: Model,
    /// By number in the trace.
    pub handles: BTreeMap<HandleId, OpenFile<H>>,
}

/// A write to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedWrite {
    /// Where.
    pub offset: u64,
    /// Seed of its bytes.
    pub seed: u64,
    /// By appending.
    pub append: bool,
}

impl<H> State<H> {
    /// An empty tree.
    pub fn new(seed: u64) -> Self {
        Self { model: Model::new(seed), handles: BTreeMap::new() }
    }

    /// Where a `write` (`at`: `None`) or `pwrite` through `handle` goes and what it must bring.
    pub fn plan_write(&self, handle: HandleId, at: Option<u64>) -> Option<PlannedWrite> {
        let open = self.handles.get(&handle)?;
        let node = open.node?;
        let append = open.append && at.is_none();
        let offset = if append { self.model.file(node)?.content.size() } else { at.unwrap_or(open.offset) };
        Some(PlannedWrite { offset, seed: self.model.seed_of_write(node, offset)?, append })
    }

    /// A handle was opened.
    pub fn opened(&mut self, number: HandleId, path: &str, flags: OpenFlags, session: H) {
        let node = self.model.open(path, flags);
        let append = flags.has(OpenFlags::APPEND);
        self.handles.insert(number, OpenFile { session, node, offset: 0, append, listing: Listing::default() });
    }

    /// A handle was closed; gives the target's.
    pub fn closed(&mut self, handle: HandleId) -> Option<H> {
        let open = self.handles.remove(&handle)?;
        if let Some(node) = open.node {
            self.model.close(node);
        }
        Some(open.session)
    }

    /// An operation other than `open` and `close` succeeded with `number`.
    pub fn succeeded(&mut self, trace: &Trace, call: &Call, number: u64) {
        let path = |id| trace.path(id);
        match *call {
            Call::Mkdir { path: dir, .. } => self.model.mkdir(path(dir)),
            Call::Create { path: file, size, .. } => self.created(path(file), size),
            Call::Symlink { target, path: link } => self.model.symlink(path(target), path(link)),
            Call::Read { handle, .. } => self.advance(handle, number),
            Call::Write { handle } => {
                if let Some(plan) = self.plan_write(handle, None) {
                    self.written(handle, plan.offset, number);
                    self.seek(handle, plan.offset + number);
                }
            }
            Call::Pwrite { handle, offset } => self.written(handle, offset, number),
            Call::Seek { handle } => self.seek(handle, number),
            Call::Ftruncate { handle, size } => {
                if let Some(node) = self.handles.get(&handle).and_then(|open| open.node) {
                    self.model.truncate(node, size);
                }
            }
            Call::Truncate { path: file, size } => {
                if let Some(node) = self.model.find(path(file), true) {
                    self.model.truncate(node, size);
                }
            }
            Call::Rmdir { path: name } | Call::Unlink { path: name } => self.model.remove(path(name)),
            Call::Rename { old, new, .. } => self.model.rename(path(old), path(new)),
            Call::Link { old, new } => self.model.link(path(old), path(new)),
            _ => {}
        }
    }

    fn created(&mut self, path: &str, size: u64) {
        let flags = OpenFlags(OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE);
        if let Some(node) = self.model.open(path, flags) {
            self.model.write(node, 0, size);
            self.model.close(node);
        }
    }

    fn written(&mut self, handle: HandleId, offset: u64, length: u64) {
        if let Some(node) = self.handles.get(&handle).and_then(|open| open.node) {
            self.model.write(node, offset, length);
        }
    }

    fn advance(&mut self, handle: HandleId, by: u64) {
        if let Some(open) = self.handles.get_mut(&handle) {
            open.offset = open.offset.saturating_add(by);
        }
    }

    fn seek(&mut self, handle: HandleId, to: u64) {
        if let Some(open) = self.handles.get_mut(&handle) {
            open.offset = to;
        }
    }
}

impl State<()> {
    /// Takes an operation as it was recorded, without running it.
    pub fn replay(&mut self, trace: &Trace, operation: &Operation) {
        let Ok(number) = operation.expected else { return };
        match operation.call {
            Call::Open { path, flags, .. } => self.opened(number as HandleId, trace.path(path), flags, ()),
            Call::Close { handle } => drop(self.closed(handle)),
            ref call => self.succeeded(trace, call, number),
        }
    }

    /// The end of a phase: handles do not cross it.
    pub fn end_phase(&mut self) {
        for handle in std::mem::take(&mut self.handles).into_values() {
            if let Some(node) = handle.node {
                self.model.close(node);
            }
        }
    }
}
