//! Operations on names and inodes of several subtrees, as a shell makes them (R15, R17, R18).

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_mds_core::api::{Crossing, Outcome};
use pando_mds_core::records::Key;
use pando_mds_core::transaction::{
    Across, Checked, Coming, Directory, Holders, How, Ready, Refusal, There, Wanted, Welcome,
};
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{
    InodeRecord, LinkChange, NameComes, Operation, Reparenting, StatRequest, Target, TransactionRecord, operation::Op,
};
use pando_proto::{Errno, Error, Ino, Reason, SubtreeId};
use prost::Message as _;

use super::{CLIENTS, Forest, commit};
use crate::model::Id;

/// Waits for the fetches of a transaction.
const WAITER: u64 = u64::MAX - 1;

/// What became of an operation.
pub enum Became {
    /// It has its outcome.
    Done(Result<Reply, Error>),
    /// It has to run again.
    Again,
    /// The client goes on there with the second target.
    Cross(Crossing),
}

/// Why a transaction does not happen.
enum Not {
    /// The operation has its outcome.
    Now(Result<(), Error>),
    /// It has to run again.
    Again,
    /// It goes on where the other subtree says.
    Cross(Crossing),
    /// It has to run again, when sessions have said what they hold.
    Awaited,
    /// The same, after a step that this subtree has to make first.
    First(SubtreeId, Box<Across>),
}

/// What a transaction does, subtree by subtree; the coordinator is the last one.
struct Sides {
    own: TransactionRecord,
    others: BTreeMap<SubtreeId, TransactionRecord>,
    /// Handles that go there, and come back.
    holders: [Holders; 2],
}

impl Forest {
    pub fn transact(&mut self, from: SubtreeId, across: Across) -> Became {
        let circle = across.there.as_ref().is_some_and(|to| self.leads_below(from, across.directory, to.subtree));
        let circle = circle.then_some(Refusal { errno: Errno::EINVAL, after: Checked::Permission });
        let refusal = across.refusal.or(circle);
        let probes = refusal.is_some() || matches!(across.directory, Directory::Plain(_));
        let own = self.new_record(from, &across);
        let given = across.goes.iter().find(|goes| goes.gives).map(|goes| Ino(goes.ino));
        let holders = given.map(|ino| self.at(from).ns.holders(ino)).unwrap_or_default();
        let mut sides = Sides { own, others: BTreeMap::new(), holders: [holders, Holders::default()] };
        if !probes {
            self.at(from).ns.lock(&sides.own);
        }
        let asked = self.ask(from, &across, refusal, probes, &mut sides);
        if !probes && asked.is_err() {
            self.at(from).ns.unlock(&sides.own, false);
        }
        match (asked, across.directory) {
            (Err(Not::Now(result)), _) => {
                return Became::Done(result.map(|()| across.reply.expect("nobody refuses a step")));
            }
            (Err(Not::Again), _) => return Became::Again,
            (Err(Not::Cross(crossing)), _) => return Became::Cross(Crossing { target: 1, consumed: 0, ..crossing }),
            (Err(Not::Awaited), _) => {
                CLIENTS.iter().for_each(|client| self.come_back(*client, true));
                return Became::Again;
            }
            (Err(Not::First(subtree, across)), _) => {
                assert!(across.reply.is_none());
                assert!(matches!(self.transact(subtree, *across), Became::Again));
                return Became::Again;
            }
            (Ok(()), _) if refusal.is_some() => {
                return Became::Done(Err(Error::posix(refusal.unwrap().errno)));
            }
            (Ok(()), Directory::Plain(ino)) => {
                self.part(from, ino, Ino(across.goes[0].dir));
                return Became::Again;
            }
            (Ok(()), _) => {}
        }
        self.decide(from, &across, sides);
        across.reply.map_or(Became::Again, |reply| Became::Done(Ok(reply)))
    }

    fn new_record(&self, from: SubtreeId, across: &Across) -> TransactionRecord {
        let (mut goes, mut comes) = (across.goes.iter().cloned(), across.comes.iter().cloned());
        TransactionRecord {
            coordinator: from.0,
            epoch: 1,
            number: self.now as u64,
            goes: goes.next(),
            more_goes: goes.collect(),
            comes: comes.next(),
            more_comes: comes.collect(),
            links: across.links.to_vec(),
            more_reparenting: across.roots.to_vec(),
            ..TransactionRecord::default()
        }
    }

    fn part(&mut self, subtree: SubtreeId, ino: Ino, dir: Ino) {
        let id = self.id_in_model(subtree, ino);
        self.split_at(subtree, ino, dir, id, true);
    }

    /// Asks all other subtrees.
    fn ask(
        &mut self,
        from: SubtreeId,
        across: &Across,
        refusal: Option<Refusal>,
        probes: bool,
        sides: &mut Sides,
    ) -> Result<(), Not> {
        let mut wanted = across.wanted.to_vec();
        if let Some(there) = &across.there {
            let ready = self.ask_there(from, across, there, refusal)?;
            if probes {
                return Ok(());
            }
            wanted.extend(self.take_up(from, across, there, ready, sides)?);
        }
        let mut homes: BTreeMap<SubtreeId, Vec<LinkChange>> = BTreeMap::new();
        for Wanted { subtree, change } in wanted {
            homes.entry(subtree).or_default().push(change);
        }
        for (home, links) in homes {
            assert!(across.there.as_ref().is_none_or(|there| there.subtree != home), "it knows that itself");
            let coming = Coming {
                comes: None,
                how: How::Replace,
                from: (Ino(0), Bytes::new()),
                links,
                caller: None,
                slash: false,
                refusal: None,
            };
            let ready = self.welcome(home, &coming)?;
            if home == from {
                sides.own.links.extend(ready.links);
                self.at(from).ns.lock(&sides.own);
            } else {
                let bare = TransactionRecord { links: ready.links, ..bare(&sides.own) };
                sides.others.insert(home, bare);
            }
        }
        Ok(())
    }

    fn ask_there(
        &mut self,
        from: SubtreeId,
        across: &Across,
        there: &There,
        refusal: Option<Refusal>,
    ) -> Result<Ready, Not> {
        let of = across.goes.first().map_or((Ino(0), Bytes::new()), |goes| (Ino(goes.dir), goes.name.clone()));
        let coming = Coming {
            comes: Some(there.comes.clone()),
            how: there.how,
            from: of,
            links: there.links.to_vec(),
            caller: across.caller.clone(),
            slash: there.slash,
            refusal,
        };
        let ready = self.welcome(there.subtree, &coming)?;
        if let Some(refusal) = refusal {
            // It would not have been refused for anything that is checked later here.
            assert!(refusal.after >= Checked::Permission && refusal.errno == Errno::EINVAL);
        }
        if self.leads_below(there.subtree, ready.directory, from) {
            return Err(Not::Now(Err(Error::posix(Errno::EINVAL))));
        }
        Ok(ready)
    }

    /// What the other subtree is to do, and what it gives. What others have to do for that.
    fn take_up(
        &mut self,
        from: SubtreeId,
        across: &Across,
        there: &There,
        ready: Ready,
        sides: &mut Sides,
    ) -> Result<Vec<Wanted>, Not> {
        if let Some(goes) = &ready.goes {
            let own = &across.goes[0];
            match ready.directory {
                Directory::Plain(ino) => {
                    self.at(from).ns.unlock(&sides.own, false);
                    self.part(there.subtree, ino, Ino(goes.dir));
                    return Err(Not::Again);
                }
                Directory::Root(child) => sides.own.more_reparenting.push(Reparenting {
                    child: child.0,
                    route: 0,
                    from: there.subtree.0,
                    parent: from.0,
                    parent_dir: own.dir,
                    name: own.name.clone(),
                }),
                Directory::None => {}
            }
            if !ready.inode.is_empty() {
                sides.holders[1] = self.at(there.subtree).ns.holders(Ino(goes.ino));
            }
            let inode = ready.inode.clone();
            let (dir, name) = (own.dir, own.name.clone());
            let back = NameComes { dir, name, ino: goes.ino, kind: goes.kind, inode, ..NameComes::default() };
            sides.own.more_comes.push(back);
            self.at(from).ns.lock(&sides.own);
        }
        let record = TransactionRecord { comes: ready.comes, goes: ready.goes, links: ready.links, ..bare(&sides.own) };
        sides.others.insert(there.subtree, record);
        Ok(ready.wanted.to_vec())
    }

    /// All are prepared: it happens.
    fn decide(&mut self, from: SubtreeId, across: &Across, sides: Sides) {
        let Sides { own, others, holders } = sides;
        let all: Vec<SubtreeId> = others.keys().copied().chain([from]).collect();
        all.iter().for_each(|subtree| self.flush(*subtree));
        for (subtree, record) in others.iter().chain([(&from, &own)]) {
            let served = self.at(*subtree);
            served.ns.lock(record);
            let change = served.ns.remember(record);
            commit(served, change);
        }
        if let Some(goes) = across.goes.first() {
            self.nobody_sees_it(from, Ino(goes.dir), &goes.name);
        }
        for change in others.values().flat_map(|record| &record.links) {
            let home = others.iter().find(|(_, record)| record.links.contains(change)).unwrap().0;
            self.nobody_sees_it(*home, Ino(change.ino), &Bytes::new());
        }
        for moved in &own.more_reparenting {
            let child = SubtreeId(moved.child);
            self.map.get_mut(&child).unwrap().parent = Some((SubtreeId(moved.parent), Ino(moved.parent_dir)));
        }
        for moved in &own.more_reparenting {
            self.raise(SubtreeId(moved.child));
            self.map_changed();
            self.name_root(SubtreeId(moved.child), Ino(moved.parent_dir), &moved.name);
        }
        for (subtree, record) in &others {
            // The coordinator reads from the pool what the other side has done.
            self.conclude(*subtree, record, &holders[0]);
            self.flush(*subtree);
            self.at(*subtree).ns.handed_on(record);
        }
        self.conclude(from, &own, &holders[1]);
        self.flush(from);
    }

    /// Whoever meets the name waits.
    fn nobody_sees_it(&mut self, subtree: SubtreeId, base: Ino, name: &Bytes) {
        let target = Some(Target { base: base.0, path: name.clone() });
        let op = Some(Op::Stat(StatRequest { target, ..StatRequest::default() }));
        let context = self.context(subtree, 0);
        let met = self.at(subtree).ns.apply(&Operation { op }, &context);
        assert!(matches!(met, Outcome::Wait(_) | Outcome::Missing(_)), "R18: {met:?}");
    }

    fn welcome(&mut self, subtree: SubtreeId, coming: &Coming) -> Result<Ready, Not> {
        let context = self.context(subtree, 0);
        let welcome = loop {
            match self.at(subtree).ns.welcome(coming, &context) {
                Welcome::Missing(fetches) => self.fetch(subtree, &fetches, Some(WAITER)),
                other => break other,
            }
        };
        self.at(subtree).ns.unpin(WAITER);
        match welcome {
            Welcome::Ready(ready) => Ok(*ready),
            Welcome::Unchanged(_) => Err(Not::Now(Ok(()))),
            Welcome::Refused(error, _) if error.reason == Reason::Unavailable => Err(Not::Awaited),
            Welcome::Refused(error, _) => Err(Not::Now(Err(error))),
            Welcome::Merge(child) => match self.merge_if_empty(child) {
                Ok(()) => Err(Not::Again),
                Err(error) => Err(Not::Now(Err(error))),
            },
            Welcome::Cross(mut crossings) if coming.comes.is_some() && coming.how != How::Adopt => {
                Err(Not::Cross(crossings.remove(0)))
            }
            Welcome::First(across) => Err(Not::First(subtree, across)),
            other => panic!("{coming:?}: {other:?}"),
        }
    }

    fn conclude(&mut self, subtree: SubtreeId, record: &TransactionRecord, holders: &Holders) {
        // As it is read after a restart.
        let record = &TransactionRecord::decode(record.encode_to_vec().as_slice()).unwrap();
        let context = self.context(subtree, 0);
        let done = loop {
            match self.at(subtree).ns.conclude(record, true, holders, &context) {
                Outcome::Missing(fetches) => self.fetch(subtree, &fetches, Some(WAITER)),
                Outcome::Done(done) => break done,
                other => panic!("{record:?}: {other:?}"),
            }
        };
        done.result.unwrap();
        let served = self.at(subtree);
        commit(served, done.change.unwrap());
        served.ns.unlock(record, true);
        served.ns.unpin(WAITER);
    }

    /// R15: the inode of a root follows its name.
    pub fn rename_root(&mut self, subtree: SubtreeId) {
        let entry = self.map[&subtree].clone();
        let Some((_, dir)) = entry.parent else { return };
        let above = self.model.node(self.model.node(entry.id).parent);
        let name = above.names.iter().find(|(_, id)| **id == entry.id).map(|(name, _)| name.clone());
        let name = Bytes::copy_from_slice(name.expect("a root has a name").as_bytes());
        self.name_root(subtree, dir, &name);
    }

    fn name_root(&mut self, subtree: SubtreeId, dir: Ino, name: &Bytes) {
        let context = self.context(subtree, 0);
        loop {
            match self.at(subtree).ns.rename_root(dir, name, &context) {
                Outcome::Missing(fetches) => self.fetch(subtree, &fetches, Some(WAITER)),
                Outcome::Done(done) => {
                    if let Some(change) = done.change {
                        commit(self.at(subtree), change);
                    }
                    return self.at(subtree).ns.unpin(WAITER);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// R17, as the map sees it: whether `to` is in this directory of `from`.
    fn leads_below(&mut self, from: SubtreeId, directory: Directory, to: SubtreeId) -> bool {
        let mut at = to;
        match directory {
            Directory::None => false,
            Directory::Root(root) => loop {
                if at == root {
                    return true;
                }
                match self.map[&at].parent {
                    Some((parent, _)) => at = parent,
                    None => return false,
                }
            },
            Directory::Plain(ino) => {
                while let Some((parent, _)) = self.map[&at].parent.filter(|(parent, _)| *parent != from) {
                    at = parent;
                }
                let below = loop {
                    match self.at(from).ns.children_below(ino) {
                        Ok(children) => break children,
                        Err(fetches) => self.fetch(from, &fetches, Some(WAITER)),
                    }
                };
                self.at(from).ns.unpin(WAITER);
                below.contains(&at)
            }
        }
    }

    /// A directory of this subtree in the model.
    fn id_in_model(&mut self, subtree: SubtreeId, ino: Ino) -> Id {
        self.flush(subtree);
        let (mut at, mut names) = (ino, Vec::new());
        let mut id = loop {
            if let Some(entry) = self.map.values().find(|entry| entry.root == at) {
                break entry.id;
            }
            let record = InodeRecord::decode(&self.store[&Key::Inode(at).encode()][1..]).unwrap();
            names.push(String::from_utf8(record.name.to_vec()).unwrap());
            at = Ino(record.parent);
        };
        for name in names.iter().rev() {
            id = self.model.node(id).names[name.as_str()];
        }
        id
    }
}

/// The same transaction, at another participant.
fn bare(record: &TransactionRecord) -> TransactionRecord {
    TransactionRecord {
        coordinator: record.coordinator,
        epoch: record.epoch,
        number: record.number,
        ..TransactionRecord::default()
    }
}
