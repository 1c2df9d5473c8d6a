//! Renames from one subtree to another, and of roots, as a shell makes them (R18).

use bytes::Bytes;
use pando_mds_core::api::Outcome;
use pando_mds_core::records::Key;
use pando_mds_core::transaction::{Across, Checked, Coming, Directory, Holders, Refusal, Welcome};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{
    InodeRecord, NameComes, Operation, RenameMode, RenameRequest, RenameResponse, StatRequest, Target,
    TransactionRecord,
};
use pando_proto::{Errno, Error, Ino, SubtreeId};
use prost::Message as _;

use super::{Forest, commit};
use crate::model::Id;

/// Waits for the fetches of a transaction.
const WAITER: u64 = u64::MAX - 1;

impl Forest {
    /// The outcome of the operation; `None`: it has to run again, as the directory is a subtree now.
    pub fn transact(
        &mut self,
        from: SubtreeId,
        rename: &RenameRequest,
        across: Across,
    ) -> Option<Result<Reply, Error>> {
        let (to, ino) = (across.to, Ino(across.goes.ino));
        let circle = self.leads_below_itself(from, &across);
        let refusal = across.refusal.or(circle.then_some(Refusal { errno: Errno::EINVAL, after: Checked::Permission }));
        let mut comes = NameComes {
            dir: across.dir.0,
            name: across.name.clone(),
            ino: ino.0,
            kind: across.goes.kind,
            inode: across.inode.clone(),
            replaces: across.replaces.0,
        };
        if to != from {
            let no_replace = rename.mode == RenameMode::NoReplace as i32;
            let caller = rename.caller.clone();
            let coming = Coming { comes: comes.clone(), caller, no_replace, slash: across.slash, refusal };
            match self.welcome(to, &coming) {
                Ok(replaces) => comes.replaces = replaces.0,
                Err(error) => return Some(Err(error)),
            }
        }
        if let Some(refusal) = refusal {
            assert!(to == from || circle, "the other side refuses it in its turn");
            return Some(Err(Error::posix(refusal.errno)));
        }
        if across.directory == Directory::Plain {
            let id = self.id_in_model(from, ino);
            self.split_at(from, ino, Ino(across.goes.dir), id, true);
            return None;
        }
        self.flush(from);
        let record = TransactionRecord {
            coordinator: from.0,
            epoch: 1,
            number: self.now as u64,
            participants: vec![from.0, to.0],
            ..TransactionRecord::default()
        };
        let goes = Some(across.goes.clone());
        let sides = if to == from {
            vec![(from, TransactionRecord { goes, comes: Some(comes), ..record })]
        } else {
            let coming = TransactionRecord { comes: Some(comes), ..record.clone() };
            vec![(to, coming), (from, TransactionRecord { goes, ..record })]
        };
        let holders = self.at(from).ns.holders(ino);
        for (subtree, record) in &sides {
            let served = self.at(*subtree);
            served.ns.lock(record);
            let change = served.ns.remember(record);
            commit(served, change);
        }
        self.nobody_sees_it(from, &across);
        if let Directory::Root(child) = across.directory {
            self.map.get_mut(&child).unwrap().parent = Some((to, across.dir));
            self.raise(child);
            self.map_changed();
            self.name_root(child, across.dir, &across.name);
        }
        for (subtree, record) in &sides {
            // The coordinator reads from the pool what the other side has done.
            self.conclude(*subtree, record, &holders);
            self.flush(*subtree);
        }
        Some(Ok(Reply::Rename(RenameResponse {})))
    }

    /// Whoever meets the name waits.
    fn nobody_sees_it(&mut self, subtree: SubtreeId, across: &Across) {
        let target = Some(Target { base: across.goes.dir, path: across.goes.name.clone() });
        let op = Some(Op::Stat(StatRequest { target, ..StatRequest::default() }));
        let context = self.context(subtree, 0);
        let met = self.at(subtree).ns.apply(&Operation { op }, &context);
        assert!(matches!(met, Outcome::Wait(_) | Outcome::Missing(_)), "R18: {met:?}");
    }

    fn welcome(&mut self, subtree: SubtreeId, coming: &Coming) -> Result<Ino, Error> {
        let context = self.context(subtree, 0);
        let welcome = loop {
            match self.at(subtree).ns.welcome(coming, &context) {
                Welcome::Missing(fetches) => self.fetch(subtree, &fetches, Some(WAITER)),
                Welcome::Refused(error, _) => break Err(error),
                Welcome::Ready(replaces, _) => break Ok(replaces),
                other => panic!("{coming:?}: {other:?}"),
            }
        };
        self.at(subtree).ns.unpin(WAITER);
        welcome
    }

    fn conclude(&mut self, subtree: SubtreeId, record: &TransactionRecord, holders: &Holders) {
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
        served.ns.unlock(record);
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

    /// R17, as the map sees it.
    fn leads_below_itself(&mut self, from: SubtreeId, across: &Across) -> bool {
        let mut at = across.to;
        match across.directory {
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
            Directory::Plain => {
                while let Some((parent, _)) = self.map[&at].parent.filter(|(parent, _)| *parent != from) {
                    at = parent;
                }
                let below = loop {
                    match self.at(from).ns.children_below(Ino(across.goes.ino)) {
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
