//! Random operations on a forest.

use bytes::Bytes;
use pando_mds_core::Config;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{Errno, Error, Ino, SubtreeId};
use proptest::prelude::*;

use super::{Forest, Warmth};
use crate::random::{MODES, PATHS, RENAMES, TARGETS, bytes_of, caller, check_attr};
use crate::rig::{at, config, mkdir};

const HANDLES: u64 = 3;
const MAX_SUBTREES: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    a: usize,
    b: usize,
    x: u16,
    uid: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    steps_of(0u8..50)
}

/// Many splits and merges, and no renames.
fn divisions() -> impl Strategy<Value = Vec<Step>> {
    steps_of(prop_oneof![3 => 0u8..12, 3 => 15u8..34, 1 => 47u8..50, 2 => Just(34), 2 => Just(37), 1 => 38u8..44])
}

fn steps_of(what: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<Step>> {
    let uid = prop_oneof![6 => Just(0u32), 1 => Just(1), 1 => Just(2)];
    let step = (what, 0..PATHS.len(), 0..PATHS.len(), any::<u16>(), uid);
    prop::collection::vec(step.prop_map(|(what, a, b, x, uid)| Step { what, a, b, x, uid }), 1..150)
}

impl Forest {
    /// Runs an operation on the forest, then on the model.
    fn check(&mut self, step: Step, op: Op, model: impl FnOnce(&mut Self) -> Result<(), Errno>) -> Option<Reply> {
        let result = self.run(1, step.uid, op.clone());
        let got = result.as_ref().map(|_| ()).map_err(|error| error.errno);
        let expected = model(self);
        assert!(got == expected, "{step:?} {op:?} gave {result:?}, the model {expected:?}");
        result.ok()
    }

    fn step(&mut self, step: Step) {
        self.now += 1;
        let (now, uid, x) = (self.now, step.uid, step.x);
        let (path, other) = (PATHS[step.a], PATHS[step.b]);
        let caller = caller(uid);
        match step.what {
            0..=4 => {
                let flags = (OpenFlag::Create as u32) | (OpenFlag::Truncate as u32);
                let data = bytes_of(x, 50);
                let op = Op::WriteFile(WriteFileRequest {
                    caller,
                    target: at(path),
                    flags,
                    mode: 0o644,
                    data: data.clone().into(),
                });
                self.check(step, op, |forest| {
                    let how = (true, false, true);
                    forest.model.write_file(now, uid, path, how, &data, 0o644, |_| false).map(|_| ())
                });
            }
            5..=8 => {
                let mode = MODES[usize::from(x) % 3];
                let op = Op::Mkdir(MkdirRequest { caller, target: at(path), mode });
                self.check(step, op, |forest| forest.model.mkdir(now, uid, path, mode).map(|_| ()));
            }
            9 | 10 | 44 => {
                let op = Op::Unlink(UnlinkRequest { caller, target: at(path) });
                self.check(step, op, |forest| forest.model.unlink(now, uid, path));
            }
            11 => {
                let op = Op::Rmdir(RmdirRequest { caller, target: at(path) });
                self.check(step, op, |forest| forest.model.rmdir(now, uid, path));
            }
            12..=14 | 45 | 46 => {
                let mode = RENAMES[usize::from(x) % 4];
                let op = Op::Rename(RenameRequest { caller, from: at(path), to: at(other), mode: mode as i32 });
                self.check(step, op, |forest| forest.model.rename(now, uid, path, other, mode));
            }
            15 | 16 | 47..=49 => {
                let op = Op::Link(LinkRequest { caller, existing: at(path), link: at(other), follow: false });
                self.check(step, op, |forest| forest.model.link(now, uid, path, other));
            }
            17 => {
                let text = TARGETS[usize::from(x) % TARGETS.len()];
                let link_target = Bytes::from_static(text.as_bytes());
                let op = Op::Symlink(SymlinkRequest { caller, target: at(path), link_target });
                self.check(step, op, |forest| forest.model.symlink(now, uid, path, text).map(|_| ()));
            }
            18..=20 => self.look(step, path),
            21 => {
                // A handle that was reclaimed is not known to be root's: writing by it takes setuid away.
                let mode = MODES[usize::from(x) % MODES.len()] & 0o1777;
                let request =
                    SetAttrRequest { caller, target: at(path), follow: true, mode: Some(mode), ..Default::default() };
                self.check(step, Op::SetAttr(request), |forest| forest.model.chmod(now, uid, path, mode).map(|_| ()));
            }
            22 => {
                let owner = u32::from(x % 3);
                let request =
                    SetAttrRequest { caller, target: at(path), follow: true, uid: Some(owner), ..Default::default() };
                self.check(step, Op::SetAttr(request), |forest| forest.model.chown(now, uid, path, owner).map(|_| ()));
            }
            23 => {
                let size = u64::from(x % 60);
                let request =
                    SetAttrRequest { caller, target: at(path), follow: true, size: Some(size), ..Default::default() };
                self.check(step, Op::SetAttr(request), |forest| {
                    forest.model.truncate(now, uid, path, size as usize).map(|_| ())
                });
            }
            24 | 25 => self.open_step(step, path),
            26 => self.write_step(step),
            27 => {
                let (client, handle) = handle_of(x);
                if self.client.handles.contains_key(&(client, handle)) {
                    self.close(client, handle).unwrap();
                }
            }
            28 => self.by_ino(step, path, other),
            29 | 30 => {
                if let Some(subtree) = self.some_subtree(x) {
                    (0..x % 4).for_each(|_| self.durable(subtree));
                }
            }
            31 => {
                let subtree = self.some_subtree(x / 7).unwrap();
                self.at(subtree).ns.evict(usize::from(x % 1000));
            }
            32 => self.page = [2, 3, 1000][usize::from(x) % 3],
            33 => self.come_back(1 + u64::from(x % 2), x % 4 < 2),
            34..=36 => {
                if self.map.len() < MAX_SUBTREES {
                    self.split(path, x % 4 != 0);
                    self.sweep();
                }
            }
            37 => {
                let subtree = self.some_subtree(x).unwrap();
                self.leave_something_unfinished(subtree, path);
                self.merge(subtree, [Warmth::Both, Warmth::Parent, Warmth::Both, Warmth::None][usize::from(x / 8 % 4)]);
                self.sweep();
            }
            38..=41 => {
                let subtree = self.some_subtree(x).unwrap();
                self.copy(subtree, [1, 1, 100, 500, 5000][usize::from(x / 16 % 5)]);
            }
            _ => {
                let subtree = self.some_subtree(x).unwrap();
                self.hand_over(subtree, x % 5 == 0);
                self.sweep();
            }
        }
    }

    /// A parent, or a child, has looked at an inode of the other side, and stands still before it knows whose it is.
    fn leave_something_unfinished(&mut self, subtree: SubtreeId, path: &str) {
        let above = self.map[&subtree].parent.map(|(parent, _)| parent);
        let op = Op::Stat(StatRequest { caller: None, target: at(path), follow: true });
        let Ok(Reply::Stat(reply)) = self.run(1, 0, op) else { return };
        self.flush(self.client.last);
        let ino = Ino(reply.attr.unwrap().ino);
        for subtree in [Some(subtree), above].into_iter().flatten() {
            self.look_at(subtree, ino);
        }
    }

    fn some_subtree(&self, x: u16) -> Option<SubtreeId> {
        self.map.keys().nth(usize::from(x) % self.map.len()).copied()
    }

    /// stat, contents, listing: by name.
    fn look(&mut self, step: Step, path: &str) {
        let uid = step.uid;
        let follow = step.x.is_multiple_of(2);
        let op = Op::Stat(StatRequest { caller: caller(uid), target: at(path), follow });
        let found = self.model.find(uid, path, follow);
        if let Some(Reply::Stat(reply)) = self.check(step, op, |_| found.map(|_| ())) {
            check_attr(&reply.attr.unwrap(), &self.model, found.unwrap());
        }
        let op = Op::ReadFile(ReadFileRequest { caller: caller(uid), target: at(path) });
        let content = self.model.read_file(uid, path);
        let expected = content.as_ref().map(|_| ()).map_err(|errno| *errno);
        if let Some(Reply::ReadFile(reply)) = self.check(step, op, |_| expected) {
            assert_eq!(reply.body.unwrap(), content.unwrap(), "I10: {path}");
        }
        self.list(step, path);
    }

    fn list(&mut self, step: Step, path: &str) {
        let (mut after, mut found) = (Bytes::new(), Vec::new());
        let expected = self.model.list(step.uid, path);
        loop {
            let request = ReaddirRequest {
                caller: caller(step.uid),
                target: at(path),
                after: after.clone(),
                limit: u32::from(step.x % 5),
                want_attrs: step.x & 8 == 0,
                want_bodies: step.x & 16 == 0,
                ..Default::default()
            };
            let dir = expected.is_ok().then(|| self.model.find(step.uid, path, true).unwrap());
            // Who may list but not search is told names alone.
            let searchable = dir.is_some_and(|dir| self.model.may(step.uid, dir, 1));
            let wanted = searchable && (request.want_attrs || request.want_bodies);
            let outcome = expected.as_ref().map(|_| ()).map_err(|errno| *errno);
            let Some(Reply::Readdir(page)) = self.check(step, Op::Readdir(request), |_| outcome) else { return };
            assert!(page.end || !page.entries.is_empty(), "a page makes progress");
            for entry in &page.entries {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                let id = self.model.node(dir.unwrap()).names[&name];
                let foreign = self.is_root(id) || self.subtrees_with(id).len() > 1;
                assert!(foreign || entry.attr.is_some() == wanted, "{name} of {path}");
                assert!(entry.attr.is_none() || !self.is_root(id), "R15: the root is not answered by the parent");
                if let Some(attr) = &entry.attr {
                    check_attr(attr, &self.model, id);
                }
                found.push((name, entry.kind()));
            }
            if page.end {
                break;
            }
            after = page.entries.last().unwrap().name.clone();
        }
        assert_eq!(Ok(found), expected, "{path}");
    }

    /// Everything that can be named is as the model has it.
    fn sweep(&mut self) {
        for (a, path) in PATHS.iter().enumerate() {
            let step = Step { what: 0, a, b: 0, x: 0, uid: 0 };
            self.look(step, path);
        }
    }

    /// For root and somebody else, everything that can be named.
    fn stat_all(&mut self) {
        for (a, path) in PATHS.iter().enumerate() {
            for uid in [0, 1] {
                let op = Op::Stat(StatRequest { caller: caller(uid), target: at(path), follow: true });
                let found = self.model.find(uid, path, true);
                let step = Step { what: 0, a, b: 0, x: 0, uid };
                if let Some(Reply::Stat(reply)) = self.check(step, op, |_| found.map(|_| ())) {
                    check_attr(&reply.attr.unwrap(), &self.model, found.unwrap());
                }
            }
        }
    }

    fn open_step(&mut self, step: Step, path: &str) {
        let (x, now) = (step.x, self.now);
        let (client, handle) = handle_of(x);
        if self.client.handles.contains_key(&(client, handle)) {
            return;
        }
        let (read, write, create) = (x & 64 == 0, x & 64 != 0, x & 256 == 0);
        let bit = |on: bool, flag: OpenFlag| if on { flag as u32 } else { 0 };
        let flags = bit(read, OpenFlag::Read) | bit(write, OpenFlag::Write) | bit(create, OpenFlag::Create);
        let request = OpenRequest {
            caller: caller(step.uid),
            target: at(path),
            handle,
            flags,
            mode: 0o640,
            ..Default::default()
        };
        let result = self.open_handle(client, step.uid, request);
        let how = (read, write, create, false, false);
        let expected = self.model.open(now, step.uid, (client, handle), path, how, 0o640);
        assert_eq!(
            result.as_ref().map(|_| ()).map_err(|error: &Error| error.errno),
            expected.map(|_| ()),
            "{step:?} {path}"
        );
    }

    fn write_step(&mut self, step: Step) {
        let (x, now) = (step.x, self.now);
        let (client, handle) = handle_of(x);
        let (offset, data) = (usize::from(x / 16 % 40), bytes_of(x, 20));
        let write = |handle, ino| {
            Op::Write(WriteRequest { handle, ino, offset: offset as u64, data: data.clone().into(), append: false })
        };
        let result = self.run_held(client, handle, write).map(|_| ()).map_err(|error| error.errno);
        let expected = match self.model.handles.get(&(client, handle)) {
            Some(_) => self.model.write_at(now, (client, handle), offset, &data),
            None => Err(Errno::EBADF),
        };
        assert_eq!(result, expected, "{step:?}");
        let Some(open) = self.model.handles.get(&(client, handle)).cloned() else { return };
        let read = |handle, ino| Op::Read(ReadRequest { handle, ino, offset: 0, length: 1000 });
        match self.run_held(client, handle, read) {
            Ok(Reply::Read(reply)) => assert_eq!(reply.data.unwrap(), self.model.node(open.id).data, "I10"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(!open.read || self.model.node(open.id).kind == FileKind::Directory, "{error}"),
        }
    }

    /// By number, from a subtree that need not have it.
    fn by_ino(&mut self, step: Step, path: &str, other: &str) {
        let op = Op::Stat(StatRequest { caller: None, target: at(path), follow: true });
        let found = self.model.find(0, path, true);
        let Ok(Reply::Stat(reply)) = self.run(1, 0, op) else { return assert!(found.is_err()) };
        // The client learns the number when what tells it is durable (I2).
        self.flush(self.client.last);
        let base = reply.attr.unwrap().ino;
        assert!(Ino(base).is_valid());
        let subtree = self.some_subtree(step.x).unwrap();
        for below in ["", other] {
            let target = Some(Target { base, path: Bytes::copy_from_slice(below.as_bytes()) });
            let op = Op::Stat(StatRequest { caller: None, target, follow: true });
            let result = self.follow(1, 0, op, subtree, vec![None]);
            let whole = if below.is_empty() { path.to_owned() } else { format!("{path}/{below}") };
            match (&result, self.model.find(0, &whole, true)) {
                (Ok(Reply::Stat(reply)), Ok(id)) => check_attr(&reply.attr.unwrap(), &self.model, id),
                (Err(error), Err(errno)) => assert_eq!(error.errno, errno, "{whole}"),
                (result, expected) => panic!("{step:?} {whole}: {result:?}, the model {expected:?}"),
            }
        }
    }
}

fn handle_of(x: u16) -> (u64, u64) {
    (u64::from(x % 2) + 1, u64::from(x / 2) % HANDLES + 1)
}

fn run(steps: Vec<Step>, budget_bytes: u64) {
    let mut forest = Forest::new(Config { budget_bytes, inline_limit: 4096, ..config() });
    for dir in ["a", "a/b", "a/b/c", "b", "d", "d/a"] {
        forest.run(1, 0, mkdir(dir)).unwrap();
        forest.model.mkdir(0, 0, dir, 0o755).unwrap();
    }
    for step in steps {
        let changes_ways = matches!(step.what, 12..=14 | 21 | 22 | 45 | 46) && forest.map.len() > 1;
        // R16: routes are learnt before, and still right after.
        if changes_ways {
            forest.stat_all();
        }
        forest.step(step);
        if changes_ways {
            forest.stat_all();
        }
        let subtrees: Vec<_> = forest.served.keys().copied().collect();
        for subtree in subtrees {
            while forest.at(subtree).ns.evict(100) {}
        }
    }
    forest.end();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_forest_agrees_with_one_tree(steps in steps()) {
        run(steps, 64 << 20);
    }

    /// R11: whatever was in memory of both, and wherever somebody had looked at the other's inodes.
    #[test]
    fn r11_joined_caches_agree_with_one_tree(steps in divisions(), budget in prop_oneof![6_000u64..20_000, Just(64 << 20)]) {
        run(steps, budget);
    }

    #[test]
    fn a_forest_agrees_with_one_tree_in_little_memory(steps in steps(), budget in 6_000u64..20_000) {
        run(steps, budget);
    }
}
