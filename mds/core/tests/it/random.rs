//! Random operations against the model, with eviction, late durability, late
//! fetches and restarts in between; in the end the records say what the model says.

use bytes::Bytes;
use pando_mds_core::Config;
use pando_mds_core::api::Fetch;
use pando_mds_core::records::Key;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Ino, Reason};
use proptest::prelude::*;

use crate::model::{Id, Model, ROOT};
use crate::rig::*;

pub const PATHS: [&str; 28] = [
    "a", "b", "c", "d", "a/b", "a/c", "a/a", "b/a", "b/c", "d/a", "d/b", "a/b/c", "a/b/a", "b/a/c", "d/a/b", "a/b/c/d",
    "a/", "a/b/", "./a", "a/../b", "a/b/../c", "c/a", "c/b", "..", ".", "a/.", "b/..", "d/a/b/c",
];
pub const TARGETS: [&str; 8] = ["a", "b", "../a", "/a/b", "c", "/", "b/a/", "../b/c"];
pub const MODES: [u32; 8] = [0o755, 0o777, 0o700, 0o1777, 0o2775, 0o4711, 0o000, 0o644];
pub const RENAMES: [RenameMode; 4] =
    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];

#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    a: usize,
    b: usize,
    x: u16,
    uid: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let uid = prop_oneof![6 => Just(0u32), 1 => Just(1), 1 => Just(2)];
    let step = (0u8..36, 0..PATHS.len(), 0..PATHS.len(), any::<u16>(), uid);
    prop::collection::vec(step.prop_map(|(what, a, b, x, uid)| Step { what, a, b, x, uid }), 1..120)
}

pub fn caller(uid: u32) -> Option<Caller> {
    Some(Caller { uid, gid: uid, groups: Vec::new() })
}

pub fn bytes_of(x: u16, most: usize) -> Vec<u8> {
    vec![(x % 251) as u8 + 1; usize::from(x) % most + 1]
}

struct World {
    rig: Rig,
    config: Config,
}

impl World {
    fn compare(&mut self, step: Step, op: Op, result: Result<Reply, pando_proto::Error>, expected: Result<(), Errno>) {
        let got = result.as_ref().map(|_| ()).map_err(|error| error.errno);
        assert_eq!(got, expected, "{step:?} {op:?} gave {result:?}");
        if !self.rig.changed {
            self.rig.check_revealed(self.config.clone(), &op, &result);
        }
        self.rig.model_followed();
    }

    fn run(&mut self, op: &Op) -> Result<Reply, pando_proto::Error> {
        self.rig.run_as(ClientId(1), op.clone())
    }

    fn in_objects(&mut self, path: &str) -> bool {
        let op = Op::Stat(StatRequest { target: at(path), follow: true, ..Default::default() });
        match self.run(&op) {
            Ok(Reply::Stat(reply)) => reply.placement.is_some_and(|placement| placement.home() == DataHome::Objects),
            _ => false,
        }
    }

    fn step(&mut self, step: Step) {
        self.rig.now += 1;
        let (now, uid, x) = (self.rig.now, step.uid, step.x);
        let (path, other) = (PATHS[step.a], PATHS[step.b]);
        let caller = caller(uid);
        match step.what {
            0..=2 => self.write_file(step, path),
            3 | 4 => {
                let mode = MODES[usize::from(x) % 3];
                let op = Op::Mkdir(MkdirRequest { caller, target: at(path), mode });
                let result = self.run(&op);
                let expected = self.rig.model.mkdir(now, uid, path, mode).map(|_| ());
                self.compare(step, op, result, expected);
            }
            5 | 6 => {
                let op = Op::Unlink(UnlinkRequest { caller, target: at(path) });
                let result = self.run(&op);
                let expected = self.rig.model.unlink(now, uid, path);
                self.compare(step, op, result, expected);
            }
            7 => {
                let op = Op::Rmdir(RmdirRequest { caller, target: at(path) });
                let result = self.run(&op);
                let expected = self.rig.model.rmdir(now, uid, path);
                self.compare(step, op, result, expected);
            }
            8 | 9 => {
                let mode = RENAMES[usize::from(x) % 4];
                let op = Op::Rename(RenameRequest { caller, from: at(path), to: at(other), mode: mode as i32 });
                let result = self.run(&op);
                let expected = self.rig.model.rename(now, uid, path, other, mode);
                self.compare(step, op, result, expected);
            }
            10 | 11 => {
                let op = Op::Link(LinkRequest { caller, existing: at(path), link: at(other), follow: false });
                let result = self.run(&op);
                let expected = self.rig.model.link(now, uid, path, other);
                self.compare(step, op, result, expected);
            }
            12 => {
                let text = TARGETS[usize::from(x) % TARGETS.len()];
                let link_target = Bytes::from_static(text.as_bytes());
                let op = Op::Symlink(SymlinkRequest { caller, target: at(path), link_target });
                let result = self.run(&op);
                let expected = self.rig.model.symlink(now, uid, path, text).map(|_| ());
                self.compare(step, op, result, expected);
            }
            13 | 14 => self.stat(step, path),
            15 => self.read_file(step, path),
            16 | 17 => self.list(step, path),
            18 => {
                let mode = MODES[usize::from(x) % MODES.len()];
                let request =
                    SetAttrRequest { caller, target: at(path), follow: true, mode: Some(mode), ..Default::default() };
                let op = Op::SetAttr(request);
                let result = self.run(&op);
                let expected = self.rig.model.chmod(now, uid, path, mode).map(|_| ());
                self.compare(step, op, result, expected);
            }
            19 => {
                let owner = u32::from(x % 3);
                let request =
                    SetAttrRequest { caller, target: at(path), follow: true, uid: Some(owner), ..Default::default() };
                let op = Op::SetAttr(request);
                let result = self.run(&op);
                let expected = self.rig.model.chown(now, uid, path, owner).map(|_| ());
                self.compare(step, op, result, expected);
            }
            20 => {
                let size = u64::from(x % 200);
                let request =
                    SetAttrRequest { caller, target: at(path), follow: true, size: Some(size), ..Default::default() };
                let op = Op::SetAttr(request);
                let result = self.run(&op);
                let expected = self.rig.model.truncate(now, uid, path, size as usize).map(|_| ());
                self.compare(step, op, result, expected);
            }
            21 => {
                let (name, value) = (format!("user.{}", x % 3), bytes_of(x, 20));
                let op = Op::SetXattr(SetXattrRequest {
                    caller,
                    target: at(path),
                    follow: true,
                    name: name.clone().into(),
                    value: value.clone().into(),
                    mode: XattrMode::Set as i32,
                });
                let result = self.run(&op);
                let expected = self.rig.model.set_xattr(now, uid, path, &name, &value);
                self.compare(step, op, result, expected);
            }
            22 | 23 => self.open(step, path),
            24 => self.write_at(step),
            25 => {
                let (client, handle) = handle_of(x);
                let result = self.rig.run_as(ClientId(client), close(handle)).map(|_| ()).map_err(|e| e.errno);
                let expected = self.rig.model.close((client, handle));
                assert_eq!(result, expected, "{step:?}");
                self.rig.model_followed();
            }
            26 => {
                let client = u64::from(x % 2) + 1;
                for ino in self.rig.ns.session_gone(ClientId(client)) {
                    self.rig.reap(ino);
                }
                self.rig.model.close_all(Some(client));
                self.rig.model_followed();
            }
            27 => self.begin_late(step),
            28 => self.rig.end_late(),
            29 | 30 => (0..x % 4).for_each(|_| self.rig.durable()),
            34 => self.rig.purge(),
            31 => {
                self.rig.ns.evict(usize::from(x % 1000));
            }
            32 => self.rig.page = [2, 3, 1000][usize::from(x) % 3],
            _ => {
                if x % 4 == 0 {
                    self.rig.restart(self.config.clone());
                }
            }
        }
        self.check_budget();
    }

    fn write_file(&mut self, step: Step, path: &str) {
        let (x, now) = (step.x, self.rig.now);
        let (create, exclusive, truncate) = (x & 1 == 0 || x & 2 == 0, x & 12 == 12, x & 16 == 0);
        let data = if x & 32 == 0 { Vec::new() } else { bytes_of(x, INLINE_LIMIT as usize) };
        let bit = |on: bool, flag: OpenFlag| if on { flag as u32 } else { 0 };
        let flags =
            bit(create, OpenFlag::Create) | bit(exclusive, OpenFlag::Exclusive) | bit(truncate, OpenFlag::Truncate);
        let request = WriteFileRequest {
            caller: caller(step.uid),
            target: at(path),
            flags,
            mode: 0o644,
            data: data.clone().into(),
        };
        let objects = self.in_objects(path);
        let op = Op::WriteFile(request);
        let result = self.run(&op);
        let expected =
            self.rig.model.write_file(now, step.uid, path, (create, exclusive, truncate), &data, 0o644, |_| objects);
        if let Err(error) = &result {
            assert_eq!(error.reason == Reason::TooLargeForInline, expected == Err(Errno::EFBIG));
        }
        self.compare(step, op, result, expected.map(|_| ()));
    }

    fn stat(&mut self, step: Step, path: &str) {
        let follow = step.x.is_multiple_of(2);
        let op = Op::Stat(StatRequest { caller: caller(step.uid), target: at(path), follow });
        let result = self.run(&op);
        let expected = self.rig.model.find(step.uid, path, follow);
        if let (Ok(Reply::Stat(reply)), Ok(id)) = (&result, &expected) {
            check_attr(&reply.attr.unwrap(), &self.rig.model, *id);
        }
        self.compare(step, op, result, expected.map(|_| ()));
    }

    fn read_file(&mut self, step: Step, path: &str) {
        let op = Op::ReadFile(ReadFileRequest { caller: caller(step.uid), target: at(path) });
        let result = self.run(&op);
        let expected = self.rig.model.read_file(step.uid, path);
        self.compare(step, op, result.clone(), expected.as_ref().map(|_| ()).map_err(|errno| *errno));
        if let (Ok(Reply::ReadFile(reply)), Ok(expected)) = (&result, &expected) {
            assert_eq!(&self.rig.content(reply), expected, "I10: {step:?} {path}");
        }
    }

    fn list(&mut self, step: Step, path: &str) {
        let (mut after, mut found) = (Bytes::new(), Vec::new());
        let expected = self.rig.model.list(step.uid, path);
        loop {
            let op = Op::Readdir(ReaddirRequest {
                caller: caller(step.uid),
                target: at(path),
                after: after.clone(),
                limit: u32::from(step.x % 5),
                want_attrs: step.x & 8 == 0,
                want_bodies: step.x & 16 == 0,
                ..Default::default()
            });
            let result = self.run(&op);
            self.rig.changed = false;
            if self.rig.page >= 1000 {
                self.rig.check_revealed_if_whole(self.config.clone(), &op, &result);
            }
            let page = match result {
                Ok(Reply::Readdir(page)) => page,
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(Err(error.errno), expected.as_ref().map(|_| ()).map_err(|errno| *errno), "{step:?}");
                    return;
                }
            };
            assert!(page.end || !page.entries.is_empty(), "a page makes progress");
            for entry in &page.entries {
                found.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.kind()));
            }
            if page.end {
                break;
            }
            after = page.entries.last().unwrap().name.clone();
        }
        assert_eq!(Ok(found), expected, "{step:?} {path}");
    }

    fn open(&mut self, step: Step, path: &str) {
        let (x, now) = (step.x, self.rig.now);
        let (client, handle) = handle_of(x);
        if self.rig.model.handles.contains_key(&(client, handle)) {
            return;
        }
        let (read, write) = (x & 64 == 0, x & 128 == 0 || x & 64 != 0);
        let (create, exclusive, truncate) = (x & 256 == 0, x & 1536 == 1536, write && x & 2048 == 0);
        let bit = |on: bool, flag: OpenFlag| if on { flag as u32 } else { 0 };
        let flags = bit(read, OpenFlag::Read)
            | bit(write, OpenFlag::Write)
            | bit(create, OpenFlag::Create)
            | bit(exclusive, OpenFlag::Exclusive)
            | bit(truncate, OpenFlag::Truncate);
        let op = Op::Open(OpenRequest {
            caller: caller(step.uid),
            target: at(path),
            handle,
            flags,
            mode: 0o640,
            want_body: x & 4096 == 0,
            size_hint: if x & 8192 == 0 { 100 } else { 0 },
        });
        let result = self.rig.run_as(ClientId(client), op.clone());
        let arguments = (read, write, create, exclusive, truncate);
        let expected = self.rig.model.open(now, step.uid, (client, handle), path, arguments, 0o640);
        assert_eq!(
            result.as_ref().map(|_| ()).map_err(|error| error.errno),
            expected.map(|_| ()),
            "{step:?} {op:?} gave {result:?}"
        );
        if let (Ok(Reply::Open(reply)), Ok(id)) = (&result, expected)
            && let Some(body) = &reply.body
        {
            assert_eq!(body, &self.rig.model.node(id).data);
        }
        // A move to objects changes ctime, which no application can tell from the open.
        if let Ok(id) = expected {
            let attr = match &result {
                Ok(Reply::Open(reply)) => reply.attr.unwrap(),
                other => panic!("{other:?}"),
            };
            self.rig.model.nodes.get_mut(&id).unwrap().ctime = attr.ctime;
        }
        self.rig.model_followed();
    }

    fn write_at(&mut self, step: Step) {
        let (x, now) = (step.x, self.rig.now);
        let (client, handle) = handle_of(x);
        let (offset, data) = (usize::from(x / 16 % 80), bytes_of(x, 60));
        let result = self.rig.write_at(ClientId(client), handle, offset as u64, &data);
        let expected = match self.rig.model.handles.get(&(client, handle)) {
            // A directory is not opened for writing.
            Some(_) => self.rig.model.write_at(now, (client, handle), offset, &data),
            None => Err(Errno::EBADF),
        };
        assert_eq!(result.map_err(|error| error.errno), expected, "{step:?}");
        self.rig.model_followed();
    }

    fn begin_late(&mut self, step: Step) {
        let keys: Vec<Bytes> = self.rig.store.keys().cloned().collect();
        let key = &keys[usize::from(step.x) % keys.len()];
        let ino = ino_of(key);
        let fetch = match step.b % 4 {
            0 => Fetch::Record(Key::Inode(ino)),
            1 => Fetch::Record(Key::Body(ino)),
            2 => Fetch::Dentries { dir: ino, after: Bytes::new(), limit: 1 + step.a as u32 },
            _ => match Key::decode(ino.shard(), key) {
                Some(key @ Key::Dentry(..)) => Fetch::Record(key),
                _ => Fetch::BackLinks { ino, after: Bytes::new(), limit: 10 },
            },
        };
        if self.rig.late.len() < 3 {
            self.rig.begin_late(&fetch);
        }
    }

    /// I8: what can go, goes.
    fn check_budget(&mut self) {
        while self.rig.ns.evict(100) {}
        if self.rig.late.is_empty() && self.rig.pending.is_empty() {
            let usage = self.rig.ns.usage();
            let total = usage.meta_bytes + usage.body_bytes;
            assert!(total <= self.config.budget_bytes, "I8: {usage:?}");
        }
    }

    fn end(mut self) {
        while !self.rig.late.is_empty() {
            self.rig.end_late();
        }
        for client in [1, 2] {
            for ino in self.rig.ns.session_gone(ClientId(client)) {
                self.rig.reap(ino);
            }
        }
        self.rig.model.close_all(None);
        self.rig.flush();
        self.rig.purge();
        self.rig.flush();
        check_store(&self.rig.store, &self.rig.model, &self.rig.objects);
        self.check_budget();
        assert_eq!(self.rig.ns.usage().pinned_bytes, 0, "nothing is dirty, open or pinned");
    }
}

fn handle_of(x: u16) -> (u64, u64) {
    (u64::from(x % 2) + 1, u64::from(x / 2 % 3) + 1)
}

pub fn check_attr(attr: &Attr, model: &Model, id: Id) {
    let node = model.node(id);
    let size = if node.kind == FileKind::Symlink { node.target.len() } else { node.data.len() };
    assert_eq!(
        (attr.kind(), attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.mtime, attr.ctime, attr.atime),
        (node.kind, node.mode, node.uid, node.gid, node.nlink, size as u64, node.mtime, node.ctime, node.atime),
    );
    assert_eq!(attr.entries, node.names.len() as u64);
}

/// The records are those of the model, and no others (I7).
pub fn check_store(store: &Store, model: &Model, objects: &Objects) {
    let mut left = store.clone();
    let mut living = objects.inos();
    let read = |ino: Ino| -> Option<InodeRecord> {
        let value = store.get(&Key::Inode(ino).encode())?;
        Some(prost::Message::decode(&value[1..]).unwrap())
    };
    let mut seen = std::collections::BTreeMap::new();
    let mut todo = vec![(Ino::ROOT, ROOT)];
    while let Some((ino, id)) = todo.pop() {
        if seen.insert(ino, id).is_some() {
            continue;
        }
        let record = read(ino).unwrap_or_else(|| panic!("no inode record for {ino}"));
        left.remove(&Key::Inode(ino).encode());
        check_record(&record, model, id);
        assert!(!record.dead);
        // The intent of a spill that a restart cut off stays until the inode is next written; without a `p/` it is void.
        assert!(record.spill_generation == 0 || record.home() == DataHome::Inline);
        if record.kind() == FileKind::File {
            let body = left.remove(&Key::Body(ino).encode());
            assert_eq!(
                body.is_some(),
                record.home() == DataHome::Inline && record.size > 0,
                "b/ if and only if inline"
            );
            let content = match body {
                Some(value) => <BodyRecord as prost::Message>::decode(&value[1..]).unwrap().data.to_vec(),
                None => {
                    living.remove(&ino);
                    let (generation, mut bytes) = objects.file(ino);
                    assert!(bytes.is_empty() || record.home() == DataHome::Objects, "I7: objects of an inline file");
                    assert!(generation <= record.generation && bytes.len() as u64 <= record.max_size);
                    bytes.resize(record.size as usize, 0);
                    bytes
                }
            };
            assert_eq!(content, model.node(id).data, "I10");
        }
        for (name, child) in &model.node(id).names {
            let name = Bytes::copy_from_slice(name.as_bytes());
            let value = left.remove(&Key::Dentry(ino, name.clone()).encode()).expect("a dentry for each name");
            let dentry: DentryRecord = prost::Message::decode(&value[1..]).unwrap();
            assert_eq!(dentry.kind(), model.node(*child).kind);
            let inode = read(Ino(dentry.ino)).expect("an inode for each dentry");
            // Each name is either the primary or has a back link.
            let primary = inode.parent == ino.0 && inode.name == name;
            let linked = left.remove(&Key::BackLink(Ino(dentry.ino), ino, name).encode()).is_some();
            assert!(primary != linked, "primary {primary}, back link {linked}");
            todo.push((Ino(dentry.ino), *child));
        }
    }
    assert_eq!(seen.len(), model.nodes.len(), "each node of the model has an inode");
    assert!(left.is_empty(), "I7: records too many: {:?}", left.keys().collect::<Vec<_>>());
    assert!(living.is_empty(), "I7: objects of nobody: {living:?}");
}

fn check_record(record: &InodeRecord, model: &Model, id: Id) {
    let attr = Attr {
        kind: record.kind,
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        nlink: record.nlink,
        size: record.size,
        atime: record.atime,
        mtime: record.mtime,
        ctime: record.ctime,
        entries: record.entries,
        ..Attr::default()
    };
    check_attr(&attr, model, id);
    let xattrs =
        record.xattrs.iter().map(|xattr| (String::from_utf8_lossy(&xattr.name).into_owned(), xattr.value.to_vec()));
    assert_eq!(xattrs.collect::<std::collections::BTreeMap<_, _>>(), model.node(id).xattrs);
}

fn run(steps: Vec<Step>, budget_bytes: u64) {
    let config = Config { budget_bytes, ..config() };
    let mut world = World { rig: Rig::new(config.clone()), config };
    world.rig.late_purges = true;
    for step in steps {
        world.step(step);
    }
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_agree_with_the_model(steps in steps()) {
        run(steps, 64 << 20);
    }

    #[test]
    fn random_operations_agree_with_the_model_in_little_memory(steps in steps(), budget in 6_000u64..20_000) {
        run(steps, budget);
    }
}
