//! Deletions of many objects at once (R22, R23).

use pando_osd_core::{Mutation, MutationKind, Purge};

use super::*;

const FILE: Ino = Ino(9);
const FLOOR: ObjectKey = ObjectKey { ino: FILE, index: u64::MAX };

fn object(index: u64) -> ObjectKey {
    ObjectKey { ino: FILE, index }
}

fn alive(generation: u64) -> ObjectHeader {
    ObjectHeader { size: 4, generation, ..ObjectHeader::default() }
}

fn sessions_of(live: &[u64]) -> Arc<Sessions> {
    let live = live.iter().copied().map(ClientId).collect();
    Arc::new(Sessions { epoch: Epoch(1), live, next_client_id: 3 })
}

fn mutation(sequence: u64, generation: u64, index: u64, kind: MutationKind) -> Mutation {
    Mutation { session: ClientId(1), sequence, low_water: 1, generation, object: object(index), kind }
}

fn purge(sequence: u64, generation: u64, index: u64) -> Request {
    Request::Purge(Box::new(Purge::new(mutation(sequence, generation, index, MutationKind::Delete))))
}

fn write(sequence: u64, generation: u64, index: u64) -> Request {
    let kind = MutationKind::Write { offset: 0, data: Bytes::from_static(b"late") };
    Request::Mutate(mutation(sequence, generation, index, kind))
}

/// The pool as the engine has it, and the primary that asks for it.
struct Rig {
    pg: Pg,
    disk: BTreeMap<ObjectKey, ObjectHeader>,
    commits: usize,
    replies: Vec<(u64, Result<Reply, Reason>)>,
}

impl Rig {
    fn new(objects: &[(u64, u64)]) -> Self {
        let mut pg = alone();
        pg.set_sessions(sessions_of(&[1]));
        pg.take_actions();
        let disk = objects.iter().map(|(index, generation)| (object(*index), alive(*generation))).collect();
        Self { pg, disk, commits: 0, replies: Vec::new() }
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Reason> {
        self.pg.request(7, request);
        self.settle(|_| {});
        self.replies.pop().expect("an answer").1
    }

    /// Does all that is wanted; `listed` happens after each list was read, and before the answer.
    fn settle(&mut self, mut listed: impl FnMut(&mut Self)) {
        loop {
            let actions = self.pg.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Commit(changes) => self.commit(&changes),
                    Action::Load { ticket, load: load @ Load::Header(object) } => {
                        let header = self.disk.get(&object).copied();
                        self.pg.loaded(ticket, load, Ok(Loaded::Header(header)));
                    }
                    Action::ListObjects { ticket, after } => {
                        let later = self.disk.iter().filter(|(object, _)| after.is_none_or(|after| **object > after));
                        let page: Vec<_> = later.take(2).map(|(object, header)| (*object, *header)).collect();
                        let more = page.len() == 2;
                        listed(self);
                        self.pg.objects_listed(ticket, Ok((page, more)));
                    }
                    Action::Reply(token, result) => self.replies.push((token, result.map_err(|error| error.reason))),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn commit(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::SetHeader { object, generation, deleted, sessions_before } => {
                    let (generation, deleted, sessions_before) = (*generation, *deleted, *sessions_before);
                    self.disk.insert(*object, ObjectHeader { size: 0, generation, deleted, sessions_before });
                }
                Change::Write { object, data, .. } => {
                    self.disk.entry(*object).or_default().size = data.len() as u64;
                }
                Change::Forget { object } => drop(self.disk.remove(object)),
                _ => {}
            }
        }
        self.commits += 1;
        self.pg.committed(1);
    }

    fn left(&self) -> Vec<ObjectKey> {
        self.disk.keys().copied().collect()
    }
}

#[test]
fn i7_a_purge_takes_what_is_there_and_leaves_one_tombstone() {
    let mut rig = Rig::new(&[(0, 1), (3, 1), (700, 1), (1 << 40, 1)]);
    rig.disk.insert(ObjectKey { ino: Ino(8), index: 5 }, alive(1));
    rig.disk.insert(ObjectKey { ino: Ino(10), index: 0 }, alive(1));
    assert_eq!(rig.ask(purge(1, 2, 3)), Ok(Reply::Trimmed));
    let others = [ObjectKey { ino: Ino(8), index: 5 }, object(0), FLOOR, ObjectKey { ino: Ino(10), index: 0 }];
    assert_eq!(rig.left(), others, "before the first, and of other files");
    let floor = ObjectHeader { size: 0, generation: 2, deleted: true, sessions_before: 3 };
    assert_eq!(rig.disk[&FLOOR], floor);
    assert!(rig.commits < 6, "as many as there are objects, not as there could be: {}", rig.commits);
}

#[test]
fn r22_no_late_write_brings_a_purged_object_back() {
    let mut rig = Rig::new(&[(5, 1)]);
    assert_eq!(rig.ask(purge(1, 2, 0)), Ok(Reply::Trimmed));
    for index in [5, 6, 1 << 40] {
        assert_eq!(rig.ask(write(2, 1, index)), Err(Reason::StaleGeneration));
        let cut = MutationKind::Truncate { size: 1 };
        assert_eq!(rig.ask(Request::Mutate(mutation(2, 1, index, cut))), Err(Reason::StaleGeneration));
    }
    assert_eq!(rig.left(), [FLOOR]);
    // The next primary knows it from its disk.
    let mut next = Rig::new(&[]);
    next.disk = rig.disk;
    assert_eq!(next.ask(write(2, 1, 5)), Err(Reason::StaleGeneration));
    assert_eq!(next.ask(write(2, 3, 5)), Ok(Reply::Written { size: 4 }), "who knows of the purge");
    assert_eq!(next.ask(write(3, 1, 5)), Err(Reason::StaleGeneration));
}

#[test]
fn r22_a_write_under_way_at_the_purge_goes_with_its_object() {
    let mut rig = Rig::new(&[(4, 1), (5, 1)]);
    rig.pg.request(1, purge(1, 2, 0));
    rig.pg.request(2, write(2, 1, 5));
    rig.pg.request(3, write(3, 1, 6));
    rig.settle(|_| {});
    let done = |token| rig.replies.iter().find(|(of, _)| *of == token).unwrap().1;
    assert_eq!((done(1), done(2)), (Ok(Reply::Trimmed), Ok(Reply::Written { size: 4 })));
    assert_eq!(rig.left(), [FLOOR], "{:?} to the third", done(3));
}

#[test]
fn r22_a_late_copy_of_a_purge_spares_what_was_written_since() {
    let mut rig = Rig::new(&[(5, 1)]);
    assert_eq!(rig.ask(purge(1, 2, 0)), Ok(Reply::Trimmed));
    assert_eq!(rig.ask(write(2, 3, 5)), Ok(Reply::Written { size: 4 }));
    assert_eq!(rig.ask(purge(1, 2, 0)), Ok(Reply::Trimmed), "the same number");
    assert_eq!(rig.ask(purge(3, 2, 0)), Ok(Reply::Trimmed), "another owner's");
    assert_eq!(rig.left(), [object(5), FLOOR]);
    // And so if the object is made while the list is on its way.
    let mut rig = Rig::new(&[(5, 1)]);
    rig.pg.request(1, purge(1, 2, 0));
    let mut made = false;
    rig.settle(|rig| {
        if !std::mem::replace(&mut made, true) {
            rig.pg.request(2, Request::Mutate(mutation(2, 2, 5, MutationKind::Delete)));
            rig.pg.request(3, write(3, 3, 5));
            rig.settle(|_| {});
        }
    });
    assert_eq!(rig.left(), [object(5), FLOOR]);
    assert_eq!(rig.ask(purge(4, 4, 0)), Ok(Reply::Trimmed));
    assert_eq!(rig.left(), [FLOOR]);
    assert_eq!(rig.ask(purge(5, 2, 0)), Err(Reason::StaleGeneration), "done before, for a later one is");
}

#[test]
fn r22_the_floor_goes_when_no_session_can_be_late() {
    let mut rig = Rig::new(&[(5, 1)]);
    assert_eq!(rig.ask(purge(1, 2, 0)), Ok(Reply::Trimmed));
    rig.pg.set_sessions(sessions_of(&[2]));
    rig.pg.tick();
    // Looking for earlier ones is another matter.
    let actions: Vec<_> = rig.pg.take_actions();
    let forgets = |action: &Action| matches!(action, Action::Commit(changes) if changes.contains(&Change::Forget { object: FLOOR }));
    assert!(!actions.iter().any(forgets), "session 2 is older than the purge");
    let mut rig = Rig::new(&[(5, 1)]);
    assert_eq!(rig.ask(purge(1, 2, 0)), Ok(Reply::Trimmed));
    rig.pg.set_sessions(sessions_of(&[]));
    rig.settle(|_| {});
    assert_eq!(rig.left(), []);
}

#[test]
fn i9_a_full_disk_purges() {
    let mut rig = Rig::new(&[(5, 1)]);
    rig.pg.set_full(true);
    assert_eq!(rig.ask(purge(1, 2, 0)), Ok(Reply::Trimmed));
    assert_eq!(rig.left(), [FLOOR]);
}

#[test]
fn r22_an_evicted_session_purges_nothing() {
    let mut rig = Rig::new(&[(5, 1)]);
    rig.pg.set_sessions(sessions_of(&[2]));
    rig.settle(|_| {});
    assert_eq!(rig.ask(purge(1, 2, 0)), Err(Reason::StaleSession));
    assert_eq!(rig.left(), [object(5)]);
}
