//! A client: follows crossings, remembers routes (R16), hands its handles over (R19).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pando_mds_core::api::Crossing;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{Errno, Error, Ino, Reason, SubtreeId};

use super::{Answer, Forest, ROOT_SUBTREE};

/// As many as symlinks.
const MAX_HOPS: usize = 40;

#[derive(Clone, Debug)]
struct Remembered {
    subtree: SubtreeId,
    base: u64,
    route: u64,
}

#[derive(Clone, Debug)]
pub struct Held {
    pub subtree: SubtreeId,
    pub ino: u64,
    flags: u32,
}

#[derive(Default)]
pub struct Client {
    /// (uid, path) of what is at that path.
    routes: BTreeMap<(u32, Bytes), Remembered>,
    pub handles: BTreeMap<(u64, u64), Held>,
    /// Where the last operation was done.
    pub last: SubtreeId,
    /// Crossings that were followed.
    pub hops: usize,
}

/// A target on its way: the path from the root to its base, as long as that is known.
type Prefix = Option<Bytes>;

pub fn targets_of(op: &mut Op) -> Vec<&mut Target> {
    match op {
        Op::Rename(r) => [&mut r.from, &mut r.to].into_iter().flatten().collect(),
        Op::Link(r) => [&mut r.existing, &mut r.link].into_iter().flatten().collect(),
        Op::Stat(r) => r.target.iter_mut().collect(),
        Op::SetAttr(r) => r.target.iter_mut().collect(),
        Op::Access(r) => r.target.iter_mut().collect(),
        Op::Open(r) => r.target.iter_mut().collect(),
        Op::ReadFile(r) => r.target.iter_mut().collect(),
        Op::WriteFile(r) => r.target.iter_mut().collect(),
        Op::Mkdir(r) => r.target.iter_mut().collect(),
        Op::Unlink(r) => r.target.iter_mut().collect(),
        Op::Rmdir(r) => r.target.iter_mut().collect(),
        Op::Symlink(r) => r.target.iter_mut().collect(),
        Op::Readlink(r) => r.target.iter_mut().collect(),
        Op::Readdir(r) => r.target.iter_mut().collect(),
        Op::SetXattr(r) => r.target.iter_mut().collect(),
        _ => Vec::new(),
    }
}

fn joined(prefix: &Bytes, more: &[u8]) -> Bytes {
    let between: &[u8] = if prefix.is_empty() { b"" } else { b"/" };
    [prefix.as_ref(), between, more].concat().into()
}

impl Forest {
    /// Runs an operation from the root, with what is remembered.
    pub fn run(&mut self, client: u64, uid: u32, mut op: Op) -> Result<Reply, Error> {
        let (mut prefixes, mut subtree) = (Vec::new(), ROOT_SUBTREE);
        for (at, target) in targets_of(&mut op).into_iter().enumerate() {
            let (start, prefix) = self.remembered(uid, target);
            if at == 0 {
                subtree = start;
            }
            prefixes.push(prefix);
        }
        self.follow(client, uid, op, subtree, prefixes)
    }

    /// Runs it at a subtree and wherever it leads to.
    pub fn follow(
        &mut self,
        client: u64,
        uid: u32,
        mut op: Op,
        mut subtree: SubtreeId,
        mut prefixes: Vec<Prefix>,
    ) -> Result<Reply, Error> {
        for _ in 0..MAX_HOPS {
            let operation = Operation { op: Some(op.clone()) };
            let crossings = match self.run_at(subtree, client, &operation) {
                Answer::Done(result) => {
                    self.client.last = subtree;
                    return result;
                }
                Answer::Cross(crossings) => crossings,
            };
            self.client.hops += 1;
            assert!(!crossings.is_empty());
            for crossing in &crossings {
                let target = &mut targets_of(&mut op)[crossing.target as usize];
                let prefix = prefixes.get_mut(crossing.target as usize);
                if let Some(prefix) = prefix {
                    *prefix = prefix.take().and_then(|prefix| self.remember(uid, prefix, target, crossing));
                }
                **target = Target { base: crossing.base.0, path: crossing.path.clone() };
            }
            subtree = crossings[0].subtree;
        }
        Err(Error::posix(Errno::ELOOP))
    }

    /// Learns a route; the path to the new base.
    fn remember(&mut self, uid: u32, prefix: Bytes, target: &Target, crossing: &Crossing) -> Prefix {
        let consumed = crossing.consumed as usize;
        if consumed == 0 {
            return None;
        }
        let path = joined(&prefix, &target.path[..consumed]);
        let route = self.map[&crossing.subtree].route;
        let remembered = Remembered { subtree: crossing.subtree, base: crossing.base.0, route };
        self.client.routes.insert((uid, path.clone()), remembered);
        Some(path)
    }

    /// Where to start: a route that is remembered, if something is left to resolve there.
    fn remembered(&self, uid: u32, target: &mut Target) -> (SubtreeId, Prefix) {
        if target.base != 0 {
            return (ROOT_SUBTREE, None);
        }
        for length in (1..target.path.len()).rev().filter(|at| target.path[*at] == b'/') {
            let prefix = target.path.slice(..length);
            let Some(remembered) = self.client.routes.get(&(uid, prefix.clone())) else { continue };
            let current = self.map.get(&remembered.subtree).is_some_and(|entry| entry.route == remembered.route);
            let skipped = target.path[length..].iter().take_while(|byte| **byte == b'/').count();
            let rest = target.path.slice(length + skipped..);
            // Else the owner would answer STALE_ROUTE.
            if current && !rest.is_empty() {
                *target = Target { base: remembered.base, path: rest };
                return (remembered.subtree, Some(prefix));
            }
        }
        (ROOT_SUBTREE, Some(Bytes::new()))
    }

    /// Where what was sent to a subtree is found today (R10).
    fn heir(&self, mut subtree: SubtreeId) -> SubtreeId {
        while let Some(into) = self.merged.get(&subtree) {
            subtree = *into;
        }
        subtree
    }

    pub fn open_handle(&mut self, client: u64, uid: u32, request: OpenRequest) -> Result<OpenResponse, Error> {
        let (handle, flags) = (request.handle, request.flags);
        let reply = self.run(client, uid, Op::Open(request))?;
        let Reply::Open(reply) = reply else { panic!("{reply:?}") };
        let held = Held { subtree: self.client.last, ino: reply.attr.unwrap().ino, flags };
        self.client.handles.insert((client, handle), held);
        Ok(reply)
    }

    /// Runs an operation on a handle; `make` gets (handle, ino).
    pub fn run_held(&mut self, client: u64, handle: u64, make: impl Fn(u64, u64) -> Op) -> Result<Reply, Error> {
        for _ in 0..MAX_HOPS {
            let Some(held) = self.client.handles.get(&(client, handle)).cloned() else {
                return Err(Error::posix(Errno::EBADF));
            };
            let subtree = self.heir(held.subtree);
            let operation = Operation { op: Some(make(handle, held.ino)) };
            match self.run_at(subtree, client, &operation) {
                Answer::Cross(crossings) => {
                    assert_eq!((crossings[0].base, crossings[0].path.as_ref()), (Ino(held.ino), &b""[..]));
                    self.client.handles.get_mut(&(client, handle)).unwrap().subtree = crossings[0].subtree;
                }
                Answer::Done(Err(error)) if error.reason == Reason::ReclaimFirst => self.come_back(client, false),
                Answer::Done(result) => return result,
            }
        }
        panic!("a handle without an owner");
    }

    /// Tells the subtrees that await it what the session has there. First it names its handles wherever it believes
    /// them, until all are where it believes: those that went elsewhere without its knowing have to be named there
    /// before it is said that there are no more. That is said where it has handles, or with `all` to everyone.
    pub fn come_back(&mut self, client: u64, all: bool) {
        while self.believed(client).into_iter().any(|subtree| self.name(client, subtree)) {}
        let told = if all { self.served.keys().copied().collect() } else { self.believed(client) };
        told.into_iter().for_each(|subtree| self.reclaimed(subtree, client));
    }

    fn believed(&self, client: u64) -> BTreeSet<SubtreeId> {
        let mine = self.client.handles.iter().filter(|((of, _), _)| *of == client);
        mine.map(|(_, held)| self.heir(held.subtree)).collect()
    }

    /// Names the handles of one subtree; whether some of them are elsewhere.
    fn name(&mut self, client: u64, subtree: SubtreeId) -> bool {
        let mine =
            self.client.handles.iter().filter(|((of, _), held)| *of == client && self.heir(held.subtree) == subtree);
        let reclaimed = |((_, handle), held): (&(u64, u64), &Held)| ReclaimedHandle {
            handle: *handle,
            ino: held.ino,
            flags: held.flags,
        };
        let handles = mine.map(reclaimed).collect();
        let operation = Operation { op: Some(Op::Reclaim(ReclaimRequest { handles })) };
        let Answer::Done(Ok(Reply::Reclaim(reply))) = self.run_at(subtree, client, &operation) else {
            panic!("a reclaim fails")
        };
        assert_eq!(reply.lost, Vec::<u64>::new(), "R19: nothing that is open is lost");
        for elsewhere in &reply.elsewhere {
            self.client.handles.get_mut(&(client, elsewhere.handle)).unwrap().subtree = SubtreeId(elsewhere.subtree);
        }
        !reply.elsewhere.is_empty()
    }

    pub fn close_all(&mut self, client: u64) {
        let handles: Vec<u64> =
            self.client.handles.keys().filter(|(of, _)| *of == client).map(|(_, handle)| *handle).collect();
        for handle in handles {
            self.close(client, handle).unwrap();
        }
    }

    pub fn close(&mut self, client: u64, handle: u64) -> Result<(), Error> {
        let close = |handle, ino| Op::Close(CloseRequest { handle, ino, ..Default::default() });
        self.run_held(client, handle, close)?;
        self.client.handles.remove(&(client, handle));
        self.model.close((client, handle)).unwrap();
        Ok(())
    }
}
