//! What one client's tree must look like: names, symlinks, contents.
//!
//! The model follows the operations that succeeded, so that every read can be
//! compared byte by byte, also after renames, links and truncates and through handles on
//! unlinked files. It decides nothing about results: those are in the recording.

use std::collections::BTreeMap;

use crate::content::{Content, mix};
use crate::trace::{Kind, OpenFlags};

/// A node of the model; stays valid as long as a name or a handle refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(usize);

/// The root of the client's tree.
pub const ROOT: NodeId = NodeId(0);
/// As Linux: more symlinks on the way are ELOOP.
const MAX_SYMLINKS: u32 = 40;

/// A regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNode {
    /// What it must hold.
    pub content: Content,
    seed: u64,
    /// Rises when bytes are overwritten or cut, so that old bytes differ from new ones.
    version: u64,
    /// End of what was written in this version.
    high_water: u64,
    links: u32,
    handles: u32,
}

/// A thing in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A file.
    File(FileNode),
    /// A directory with its entries.
    Dir {
        /// Names.
        entries: BTreeMap<Box<str>, NodeId>,
        /// Rises with each change of the entries.
        version: u64,
    },
    /// A symlink with its target.
    Symlink(Box<str>),
}

impl Node {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::File(_) => Kind::File,
            Self::Dir { .. } => Kind::Dir,
            Self::Symlink(_) => Kind::Symlink,
        }
    }

    fn dir() -> Self {
        Self::Dir { entries: BTreeMap::new(), version: 0 }
    }
}

/// Where a path ends: a name in a directory, with what stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: NodeId,
    /// The name; empty for the root itself.
    pub name: Box<str>,
    /// What it names.
    pub node: Option<NodeId>,
}

/// One client's tree.
#[derive(Clone, Debug)]
pub struct Model {
    /// By id. Ids are not used again: a handle may outlive its directory.
    nodes: Vec<Option<Node>>,
    seed: u64,
    files_made: u64,
}

impl Model {
    /// An empty tree; contents follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { nodes: vec![Some(Node::dir())], seed, files_made: 0 }
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0)?.as_ref()
    }

    /// A file's node.
    pub fn file(&self, id: NodeId) -> Option<&FileNode> {
        match self.node(id)? {
            Node::File(file) => Some(file),
            _ => None,
        }
    }

    /// Entries and version of a directory.
    pub fn dir(&self, id: NodeId) -> Option<(&BTreeMap<Box<str>, NodeId>, u64)> {
        match self.node(id)? {
            Node::Dir { entries, version } => Some((entries, *version)),
            _ => None,
        }
    }

    fn file_mut(&mut self, id: NodeId) -> Option<&mut FileNode> {
        match self.nodes.get_mut(id.0)?.as_mut()? {
            Node::File(file) => Some(file),
            _ => None,
        }
    }

    fn entries_mut(&mut self, id: NodeId) -> Option<&mut BTreeMap<Box<str>, NodeId>> {
        match self.nodes.get_mut(id.0)?.as_mut()? {
            Node::Dir { entries, version } => {
                *version += 1;
                Some(entries)
            }
            _ => None,
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(Some(node));
        NodeId(self.nodes.len() - 1)
    }

    /// Finds where `path` ends, following symlinks on the way and, if asked, at the end.
    /// `None`: a directory on the way is missing, or it leads out of the tree.
    pub fn locate(&self, path: &str, follow: bool) -> Option<Place> {
        if path.is_empty() {
            return None;
        }
        let mut todo: Vec<&str> = path.rsplit('/').collect();
        let mut trail = vec![ROOT];
        let mut symlinks = 0;
        let mut place = Place { dir: ROOT, name: "".into(), node: Some(ROOT) };
        while let Some(part) = todo.pop() {
            match part {
                "." | "" => continue,
                ".." => {
                    trail.pop();
                    let here = *trail.last()?;
                    place = Place { dir: here, name: "".into(), node: Some(here) };
                    continue;
                }
                _ => {}
            }
            let dir = *trail.last()?;
            let node = self.dir(dir)?.0.get(part).copied();
            place = Place { dir, name: part.into(), node };
            match node.and_then(|id| self.node(id)) {
                Some(Node::Symlink(target)) if follow || !todo.is_empty() => {
                    symlinks += 1;
                    if symlinks > MAX_SYMLINKS || target.starts_with('/') {
                        return None;
                    }
                    todo.extend(target.rsplit('/'));
                }
                Some(Node::Dir { .. }) => trail.extend(node),
                _ if todo.is_empty() => {}
                _ => return None,
            }
        }
        Some(place)
    }

    /// What `path` names.
    pub fn find(&self, path: &str, follow: bool) -> Option<NodeId> {
        self.locate(path, follow)?.node
    }

    fn bind(&mut self, place: &Place, node: NodeId) {
        let replaced = self.entries_mut(place.dir).and_then(|entries| entries.insert(place.name.clone(), node));
        if let Some(old) = replaced.filter(|old| *old != node) {
            self.unlinked(old);
        }
    }

    /// One name less.
    fn unlinked(&mut self, id: NodeId) {
        let gone = match self.nodes.get_mut(id.0).and_then(Option::as_mut) {
            Some(Node::File(file)) => {
                file.links = file.links.saturating_sub(1);
                file.links == 0 && file.handles == 0
            }
            Some(_) => true,
            None => false,
        };
        if gone && id != ROOT {
            self.drop_node(id);
        }
    }

    fn drop_node(&mut self, id: NodeId) {
        self.nodes[id.0] = None;
    }

    fn new_file(&mut self, place: &Place) -> NodeId {
        self.files_made += 1;
        let seed = mix(self.seed, self.files_made);
        let content = Content::default();
        let file = FileNode { content, seed, version: 0, high_water: 0, links: 1, handles: 0 };
        let id = self.add(Node::File(file));
        self.bind(place, id);
        id
    }

    /// A directory was made.
    pub fn mkdir(&mut self, path: &str) {
        if let Some(place) = self.locate(path, false).filter(|place| place.node.is_none()) {
            let id = self.add(Node::dir());
            self.bind(&place, id);
        }
    }

    /// A symlink was made.
    pub fn symlink(&mut self, target: &str, path: &str) {
        if let Some(place) = self.locate(path, false).filter(|place| place.node.is_none()) {
            let id = self.add(Node::Symlink(target.into()));
            self.bind(&place, id);
        }
    }

    /// A file was opened, which perhaps made or emptied it. The node has one handle more.
    pub fn open(&mut self, path: &str, flags: OpenFlags) -> Option<NodeId> {
        let place = self.locate(path, !flags.has(OpenFlags::NO_FOLLOW) && !flags.has(OpenFlags::EXCLUSIVE))?;
        let id = match place.node {
            Some(id) => id,
            None if flags.has(OpenFlags::CREATE) => self.new_file(&place),
            None => return None,
        };
        if flags.has(OpenFlags::TRUNCATE) {
            self.truncate(id, 0);
        }
        if let Some(file) = self.file_mut(id) {
            file.handles += 1;
        }
        Some(id)
    }

    /// A handle was closed.
    pub fn close(&mut self, id: NodeId) {
        let Some(file) = self.file_mut(id) else { return };
        file.handles = file.handles.saturating_sub(1);
        if file.handles == 0 && file.links == 0 {
            self.drop_node(id);
        }
    }

    /// The seed of the bytes that a write of `[offset, offset + length)` has to bring.
    pub fn seed_of_write(&self, id: NodeId, offset: u64) -> Option<u64> {
        let file = self.file(id)?;
        Some(mix(file.seed, if offset < file.high_water { file.version + 1 } else { file.version }))
    }

    /// The seed of the whole content of the file that would be made at `path` next.
    pub fn seed_of_create(&self, path: &str) -> u64 {
        match self.find(path, true).and_then(|id| self.file(id)) {
            Some(file) => mix(file.seed, file.version + u64::from(file.content.size() > 0)),
            None => mix(mix(self.seed, self.files_made + 1), 0),
        }
    }

    /// Bytes were written with the seed of [`Self::seed_of_write`].
    pub fn write(&mut self, id: NodeId, offset: u64, length: u64) {
        let Some(seed) = self.seed_of_write(id, offset) else { return };
        let Some(file) = self.file_mut(id) else { return };
        if offset < file.high_water {
            file.version += 1;
            file.high_water = 0;
        }
        file.high_water = file.high_water.max(offset + length);
        file.content.write(offset, length, seed);
    }

    /// A file was cut or extended.
    pub fn truncate(&mut self, id: NodeId, size: u64) {
        let Some(file) = self.file_mut(id) else { return };
        if size < file.content.size() {
            file.version += 1;
            file.high_water = size;
        }
        file.content.truncate(size);
    }

    /// A name was removed (of a file, symlink or empty directory).
    pub fn remove(&mut self, path: &str) {
        let Some(place) = self.locate(path, false) else { return };
        let removed = self.entries_mut(place.dir).and_then(|entries| entries.remove(&place.name));
        if let Some(id) = removed {
            self.unlinked(id);
        }
    }

    /// A name was moved, perhaps over another.
    pub fn rename(&mut self, old: &str, new: &str) {
        let (Some(from), Some(to)) = (self.locate(old, false), self.locate(new, false)) else { return };
        let Some(id) = from.node.filter(|id| to.node != Some(*id)) else { return };
        if let Some(entries) = self.entries_mut(from.dir) {
            entries.remove(&from.name);
        }
        self.bind(&to, id);
    }

    /// A second name was made.
    pub fn link(&mut self, old: &str, new: &str) {
        let (Some(id), Some(place)) = (self.find(old, false), self.locate(new, false)) else { return };
        if let Some(file) = self.file_mut(id) {
            file.links += 1;
        }
        self.bind(&place, id);
    }
}
