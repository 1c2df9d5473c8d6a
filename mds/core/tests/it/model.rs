//! A naive POSIX file system: the oracle. Slow, and as plain as can be.

use std::collections::BTreeMap;

use pando_proto::Errno;
use pando_proto::mds::{FileKind, RenameMode};

pub type Id = u64;
pub const ROOT: Id = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub data: Vec<u8>,
    pub target: String,
    pub names: BTreeMap<String, Id>,
    pub parent: Id,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    pub id: Id,
    pub read: bool,
    pub write: bool,
    pub root: bool,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<Id, Node>,
    pub handles: BTreeMap<(u64, u64), Open>,
    next: Id,
}

type Res<T> = Result<T, Errno>;

/// Where a path ended.
enum Spot {
    Node(Id, Errno),
    Name { dir: Id, name: String, found: Option<Id>, slash: bool },
}

impl Model {
    pub fn new() -> Self {
        let root = Node {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            data: Vec::new(),
            target: String::new(),
            names: BTreeMap::new(),
            parent: ROOT,
            atime: 0,
            mtime: 0,
            ctime: 0,
            xattrs: BTreeMap::new(),
        };
        Self { nodes: BTreeMap::from([(ROOT, root)]), handles: BTreeMap::new(), next: 2 }
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn edit(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    fn is_dir(&self, id: Id) -> bool {
        self.node(id).kind == FileKind::Directory
    }

    pub fn may(&self, uid: u32, id: Id, mask: u32) -> bool {
        let node = self.node(id);
        let shift = if uid == node.uid {
            6
        } else if uid == node.gid {
            3
        } else {
            0
        };
        uid == 0 || (node.mode >> shift) & mask == mask
    }

    fn check(&self, uid: u32, id: Id, mask: u32) -> Res<()> {
        if self.may(uid, id, mask) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn check_delete(&self, uid: u32, dir: Id, victim: Id) -> Res<()> {
        self.check(uid, dir, 3)?;
        let sticky = self.node(dir).mode & 0o1000 != 0;
        let owns = uid == 0 || self.node(dir).uid == uid || self.node(victim).uid == uid;
        if sticky && !owns { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Textbook resolution: a list of names, symlinks spliced in.
    fn walk(&self, uid: u32, path: &str, follow: bool) -> Res<Spot> {
        let split = |path: &str| -> Vec<String> {
            let mut names: Vec<String> = path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            if path.ends_with('/')
                && let Some(last) = names.last_mut()
            {
                last.push('/');
            }
            names.reverse();
            names
        };
        let (mut names, mut here, mut links) = (split(path), ROOT, 0);
        let mut special = Errno::EBUSY;
        while let Some(name) = names.pop() {
            let slash = name.ends_with('/');
            let name = name.trim_end_matches('/').to_owned();
            let last = names.is_empty();
            if !self.is_dir(here) {
                return Err(Errno::ENOTDIR);
            }
            self.check(uid, here, 1)?;
            if name == "." {
                special = Errno::EINVAL;
                continue;
            }
            if name == ".." {
                here = self.node(here).parent;
                special = Errno::ENOTEMPTY;
                continue;
            }
            let found = self.node(here).names.get(&name).copied();
            match found {
                Some(id) if self.node(id).kind == FileKind::Symlink && (!last || follow || slash) => {
                    links += 1;
                    if links > 40 {
                        return Err(Errno::ELOOP);
                    }
                    let target = &self.node(id).target;
                    if target.starts_with('/') {
                        here = ROOT;
                    }
                    special = Errno::EBUSY;
                    let mut spliced = split(target);
                    if slash && let Some(last) = spliced.first_mut() {
                        last.push('/');
                    }
                    names.extend(spliced);
                }
                _ if last => return Ok(Spot::Name { dir: here, name, found, slash }),
                None => return Err(Errno::ENOENT),
                Some(id) if !self.is_dir(id) => return Err(Errno::ENOTDIR),
                Some(id) => {
                    here = id;
                    special = Errno::EBUSY;
                }
            }
        }
        Ok(Spot::Node(here, special))
    }

    pub fn find(&self, uid: u32, path: &str, follow: bool) -> Res<Id> {
        match self.walk(uid, path, follow)? {
            Spot::Node(id, _) => Ok(id),
            Spot::Name { found: None, .. } => Err(Errno::ENOENT),
            Spot::Name { found: Some(id), slash, .. } if slash && !self.is_dir(id) => Err(Errno::ENOTDIR),
            Spot::Name { found: Some(id), .. } => Ok(id),
        }
    }

    fn make(&mut self, now: i64, uid: u32, dir: Id, name: &str, kind: FileKind, mode: u32) -> Res<Id> {
        if self.node(dir).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.check(uid, dir, 3)?;
        let is_dir = kind == FileKind::Directory;
        let setgid = self.node(dir).mode & 0o2000 != 0;
        let gid = if setgid { self.node(dir).gid } else { uid };
        let mode = if setgid && is_dir { mode | 0o2000 } else { mode };
        let nlink = if is_dir { 2 } else { 1 };
        let id = self.next;
        self.next += 1;
        let blank = Node { parent: dir, ..Model::new().nodes[&ROOT].clone() };
        let node = Node { kind, mode, uid, gid, nlink, atime: now, mtime: now, ctime: now, ..blank };
        self.nodes.insert(id, node);
        let parent = self.edit(dir);
        parent.names.insert(name.to_owned(), id);
        parent.nlink += u32::from(is_dir);
        (parent.mtime, parent.ctime) = (now, now);
        Ok(id)
    }

    fn unnamed(&mut self, now: i64, id: Id) {
        let node = self.edit(id);
        node.nlink = if node.kind == FileKind::Directory { 0 } else { node.nlink - 1 };
        node.ctime = now;
        self.forget(id);
    }

    fn forget(&mut self, id: Id) {
        if self.node(id).nlink == 0 && !self.handles.values().any(|open| open.id == id) {
            self.nodes.remove(&id);
        }
    }

    fn remove_name(&mut self, now: i64, dir: Id, name: &str) {
        let id = self.edit(dir).names.remove(name).unwrap();
        let is_dir = self.is_dir(id);
        let parent = self.edit(dir);
        parent.nlink -= u32::from(is_dir);
        (parent.mtime, parent.ctime) = (now, now);
    }

    pub fn mkdir(&mut self, now: i64, uid: u32, path: &str, mode: u32) -> Res<Id> {
        match self.walk(uid, path, false)? {
            Spot::Name { dir, name, found: None, .. } => self.make(now, uid, dir, &name, FileKind::Directory, mode),
            _ => Err(Errno::EEXIST),
        }
    }

    pub fn symlink(&mut self, now: i64, uid: u32, path: &str, target: &str) -> Res<Id> {
        match self.walk(uid, path, false)? {
            Spot::Name { found: None, slash: true, .. } => Err(Errno::ENOENT),
            Spot::Name { dir, name, found: None, .. } => {
                let id = self.make(now, uid, dir, &name, FileKind::Symlink, 0o777)?;
                self.edit(id).target = target.to_owned();
                Ok(id)
            }
            _ => Err(Errno::EEXIST),
        }
    }

    pub fn unlink(&mut self, now: i64, uid: u32, path: &str) -> Res<()> {
        let Spot::Name { dir, name, found, slash } = self.walk(uid, path, false)? else { return Err(Errno::EISDIR) };
        let id = found.ok_or(Errno::ENOENT)?;
        self.check_delete(uid, dir, id)?;
        if self.is_dir(id) {
            return Err(Errno::EISDIR);
        }
        if slash {
            return Err(Errno::ENOTDIR);
        }
        self.remove_name(now, dir, &name);
        self.unnamed(now, id);
        Ok(())
    }

    pub fn rmdir(&mut self, now: i64, uid: u32, path: &str) -> Res<()> {
        let (dir, name, found) = match self.walk(uid, path, false)? {
            Spot::Node(_, errno) => return Err(errno),
            Spot::Name { dir, name, found, .. } => (dir, name, found),
        };
        let id = found.ok_or(Errno::ENOENT)?;
        self.check_delete(uid, dir, id)?;
        if !self.is_dir(id) {
            return Err(Errno::ENOTDIR);
        }
        if !self.node(id).names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove_name(now, dir, &name);
        self.unnamed(now, id);
        Ok(())
    }

    pub fn link(&mut self, now: i64, uid: u32, existing: &str, new: &str) -> Res<()> {
        let id = self.find(uid, existing, false)?;
        let Spot::Name { dir, name, found, slash } = self.walk(uid, new, false)? else { return Err(Errno::EEXIST) };
        if found.is_some() {
            return Err(Errno::EEXIST);
        }
        if slash || self.node(dir).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.check(uid, dir, 3)?;
        if self.is_dir(id) {
            return Err(Errno::EPERM);
        }
        let node = self.edit(id);
        node.nlink += 1;
        node.ctime = now;
        let parent = self.edit(dir);
        parent.names.insert(name, id);
        (parent.mtime, parent.ctime) = (now, now);
        Ok(())
    }

    fn below(&self, id: Id, mut at: Id) -> bool {
        loop {
            if at == id {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.node(at).parent;
        }
    }

    fn check_move(&self, uid: u32, id: Id, from: Id, to: Id) -> Res<()> {
        if !self.is_dir(id) || from == to {
            return Ok(());
        }
        self.check(uid, id, 2)?;
        if self.below(id, to) { Err(Errno::EINVAL) } else { Ok(()) }
    }

    pub fn rename(&mut self, now: i64, uid: u32, from: &str, to: &str, mode: RenameMode) -> Res<()> {
        let Spot::Name { dir: a, name: an, found, slash: aslash } = self.walk(uid, from, false)? else {
            return Err(Errno::EBUSY);
        };
        let Spot::Name { dir: b, name: bn, found: other, slash: bslash } = self.walk(uid, to, false)? else {
            return Err(Errno::EBUSY);
        };
        let id = found.ok_or(Errno::ENOENT)?;
        if mode == RenameMode::NoReplace && other.is_some() {
            return Err(Errno::EEXIST);
        }
        let exchange = mode == RenameMode::Exchange;
        let must = if exchange { other.ok_or(Errno::ENOENT)? } else { id };
        if aslash && !self.is_dir(id) || bslash && !self.is_dir(must) {
            return Err(Errno::ENOTDIR);
        }
        self.check_delete(uid, a, id)?;
        self.check(uid, b, 3)?;
        self.check_move(uid, id, a, b)?;
        if exchange {
            let other = must;
            self.check_delete(uid, b, other)?;
            self.check_move(uid, other, b, a)?;
            if other == id {
                return Ok(());
            }
            self.remove_name(now, a, &an);
            self.remove_name(now, b, &bn);
            self.put_name(now, b, bn, id);
            self.put_name(now, a, an, other);
            return Ok(());
        }
        if other == Some(id) {
            return Ok(());
        }
        if let Some(other) = other {
            self.check_delete(uid, b, other)?;
            match (self.is_dir(id), self.is_dir(other)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.node(other).names.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
            self.remove_name(now, b, &bn);
            self.unnamed(now, other);
        }
        self.remove_name(now, a, &an);
        self.put_name(now, b, bn, id);
        Ok(())
    }

    fn put_name(&mut self, now: i64, dir: Id, name: String, id: Id) {
        let is_dir = self.is_dir(id);
        let parent = self.edit(dir);
        parent.names.insert(name, id);
        parent.nlink += u32::from(is_dir);
        (parent.mtime, parent.ctime) = (now, now);
        let node = self.edit(id);
        node.ctime = now;
        if is_dir {
            node.parent = dir;
        }
    }

    /// The file to write, made if `create`.
    fn target(&mut self, now: i64, uid: u32, path: &str, create: bool, exclusive: bool, mode: u32) -> Res<(Id, bool)> {
        match self.walk(uid, path, !(create && exclusive))? {
            Spot::Name { found: None, slash: true, .. } if create => Err(Errno::EISDIR),
            Spot::Name { dir, name, found: None, .. } if create => {
                Ok((self.make(now, uid, dir, &name, FileKind::File, mode)?, true))
            }
            Spot::Name { found: None, .. } => Err(Errno::ENOENT),
            _ if create && exclusive => Err(Errno::EEXIST),
            Spot::Name { found: Some(id), slash, .. } => {
                if slash && !self.is_dir(id) {
                    Err(Errno::ENOTDIR)
                } else {
                    Ok((id, false))
                }
            }
            Spot::Node(id, _) => Ok((id, false)),
        }
    }

    fn written(&mut self, now: i64, root: bool, id: Id) {
        let node = self.edit(id);
        (node.mtime, node.ctime) = (now, now);
        if !root {
            node.mode &= !0o4000;
            if node.mode & 0o010 != 0 {
                node.mode &= !0o2000;
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub fn write_file(
        &mut self,
        now: i64,
        uid: u32,
        path: &str,
        (create, exclusive, truncate): (bool, bool, bool),
        data: &[u8],
        mode: u32,
        in_objects: impl Fn(Id) -> bool,
    ) -> Res<bool> {
        let (id, made) = self.target(now, uid, path, create, exclusive, mode)?;
        if made {
            self.edit(id).data = data.to_vec();
            return Ok(true);
        }
        if self.is_dir(id) {
            return Err(Errno::EISDIR);
        }
        if self.node(id).kind != FileKind::File {
            return Err(Errno::ELOOP);
        }
        self.check(uid, id, 2)?;
        if in_objects(id) {
            return Err(Errno::EFBIG);
        }
        let old = if truncate { Vec::new() } else { self.node(id).data.clone() };
        let mut new = data.to_vec();
        if old.len() > new.len() {
            new.extend_from_slice(&old[new.len()..]);
        }
        self.edit(id).data = new;
        self.written(now, uid == 0, id);
        Ok(false)
    }

    pub fn read_file(&self, uid: u32, path: &str) -> Res<Vec<u8>> {
        let id = self.find(uid, path, true)?;
        if self.is_dir(id) {
            return Err(Errno::EISDIR);
        }
        self.check(uid, id, 4)?;
        Ok(self.node(id).data.clone())
    }

    #[allow(clippy::too_many_arguments)]
    pub fn open(
        &mut self,
        now: i64,
        uid: u32,
        handle: (u64, u64),
        path: &str,
        (read, write, create, exclusive, truncate): (bool, bool, bool, bool, bool),
        mode: u32,
    ) -> Res<Id> {
        let (id, made) = self.target(now, uid, path, create, exclusive, mode)?;
        if !made {
            if self.is_dir(id) && (write || create) {
                return Err(Errno::EISDIR);
            }
            self.check(uid, id, if read { 4 } else { 0 } | if write { 2 } else { 0 })?;
            if truncate {
                self.edit(id).data.clear();
                self.written(now, uid == 0, id);
            }
        }
        self.handles.insert(handle, Open { id, read, write, root: uid == 0 });
        Ok(id)
    }

    pub fn close(&mut self, handle: (u64, u64)) -> Res<()> {
        let open = self.handles.remove(&handle).ok_or(Errno::EBADF)?;
        self.forget(open.id);
        Ok(())
    }

    pub fn close_all(&mut self, client: Option<u64>) {
        let handles: Vec<_> = self.handles.keys().copied().collect();
        for handle in handles {
            if client.is_none_or(|client| client == handle.0) {
                self.close(handle).unwrap();
            }
        }
    }

    pub fn write_at(&mut self, now: i64, handle: (u64, u64), offset: usize, data: &[u8]) -> Res<()> {
        let open = self.handles.get(&handle).cloned().ok_or(Errno::EBADF)?;
        if !open.write {
            return Err(Errno::EBADF);
        }
        let bytes = &mut self.edit(open.id).data;
        let end = offset + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(data);
        self.written(now, open.root, open.id);
        Ok(())
    }

    pub fn chmod(&mut self, now: i64, uid: u32, path: &str, mode: u32) -> Res<Id> {
        let id = self.find(uid, path, true)?;
        let node = self.edit(id);
        if uid != 0 && uid != node.uid {
            return Err(Errno::EPERM);
        }
        node.mode = if uid != 0 && uid != node.gid { mode & !0o2000 } else { mode };
        node.ctime = now;
        Ok(id)
    }

    pub fn chown(&mut self, now: i64, uid: u32, path: &str, owner: u32) -> Res<Id> {
        let id = self.find(uid, path, true)?;
        let node = self.edit(id);
        if uid != 0 && !(uid == node.uid && owner == node.uid) {
            return Err(Errno::EPERM);
        }
        node.uid = owner;
        if node.kind != FileKind::Directory {
            node.mode &= !0o4000;
            if node.mode & 0o010 != 0 {
                node.mode &= !0o2000;
            }
        }
        node.ctime = now;
        Ok(id)
    }

    pub fn truncate(&mut self, now: i64, uid: u32, path: &str, size: usize) -> Res<Id> {
        let id = self.find(uid, path, true)?;
        if self.is_dir(id) {
            return Err(Errno::EISDIR);
        }
        self.check(uid, id, 2)?;
        self.edit(id).data.resize(size, 0);
        self.written(now, uid == 0, id);
        Ok(id)
    }

    pub fn set_xattr(&mut self, now: i64, uid: u32, path: &str, name: &str, value: &[u8]) -> Res<()> {
        let id = self.find(uid, path, true)?;
        let node = self.node(id);
        if node.kind == FileKind::Directory && node.mode & 0o1000 != 0 && uid != 0 && uid != node.uid {
            return Err(Errno::EPERM);
        }
        self.check(uid, id, 2)?;
        let node = self.edit(id);
        node.xattrs.insert(name.to_owned(), value.to_vec());
        node.ctime = now;
        Ok(())
    }

    pub fn list(&self, uid: u32, path: &str) -> Res<Vec<(String, FileKind)>> {
        let id = self.find(uid, path, true)?;
        if !self.is_dir(id) {
            return Err(Errno::ENOTDIR);
        }
        self.check(uid, id, 4)?;
        Ok(self.node(id).names.iter().map(|(name, id)| (name.clone(), self.node(*id).kind)).collect())
    }
}
