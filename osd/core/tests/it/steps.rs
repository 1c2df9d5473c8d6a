//! Single steps, with everything that comes out of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_osd_core::{
    Action, Batch, Body, Change, Concerned, Configuration, Entry, Fence, Load, Loaded, Message, ObjectHeader,
    ObjectKey, Page, PageRange, Pg, Position, Reads, Reply, Request, Sessions, Stored, Told, Verdict, keys,
};
use pando_proto::ids::METADATA_POOL;
use pando_proto::{ClientId, Epoch, Ino, OsdId, PgId, Reason, ShardId, SubtreeId};

const PG: PgId = PgId { pool: METADATA_POOL, index: 0 };
const SHARD: ShardId = ShardId(1);
const ONE: SubtreeId = SubtreeId(1);

fn configuration(number: u64, members: &[u32], joining: &[u32], min_size: usize) -> Configuration {
    let list = |ids: &[u32]| ids.iter().copied().map(OsdId).collect();
    Configuration { number, members: list(members), joining: list(joining), min_size, forgiven: 0 }
}

fn stored(promised: u64, config: u64, seq: u64) -> Stored {
    Stored { promised, position: Position { config, seq }, ..Stored::default() }
}

fn told(ticket: u64, position: Position, incomplete: bool) -> Body {
    Body::Position { ticket, told: Told { position, decided: Position::default(), incomplete } }
}

fn append(entry: Entry) -> Body {
    Body::Append(entry, Position::default())
}

fn batch(number: u64, key: &'static [u8]) -> Batch {
    let changes = vec![Change::Put { key: keys::record(SHARD, key), value: Bytes::from_static(b"v") }];
    Batch { shard: SHARD, subtree: ONE, epoch: 1, batch: number, changes }
}

/// What a batch changes, its fence included.
fn changes(number: u64, key: &'static [u8]) -> Vec<Change> {
    let fence = Fence { epoch: 1, applied: (1, number) };
    let mut changes = batch(number, key).changes;
    changes.push(Change::Put { key: keys::fence(SHARD, ONE), value: fence.encode() });
    changes
}

fn with(mut changes: Vec<Change>, stored: Stored) -> Action {
    changes.push(stored.to_change());
    Action::Commit(changes)
}

fn send(to: u32, config: u64, body: Body) -> Action {
    Action::Send(OsdId(to), Message { config, body })
}

/// Answers the question for sessions, the only action.
fn sessions(pg: &mut Pg) {
    let actions = pg.take_actions();
    let [Action::LoadSessions(ticket)] = actions[..] else { panic!("{actions:?}") };
    pg.sessions_loaded(ticket, Ok(Vec::new()));
}

/// Answers the question for the fence, the only action: there is none yet.
fn no_fence(pg: &mut Pg) {
    let actions = pg.take_actions();
    let [Action::Load { ticket, load: load @ Load::Fence(SHARD, ONE) }] = actions[..] else { panic!("{actions:?}") };
    pg.loaded(ticket, load, Ok(Loaded::Fence(None)));
}

/// A primary that is alone and serves.
fn alone() -> Pg {
    let mut pg = Pg::new(PG, OsdId(0), Stored::default(), 16);
    pg.configure(configuration(1, &[0], &[], 1));
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(1, 0, 0))]);
    pg.committed(1);
    sessions(&mut pg);
    assert_eq!(pg.take_actions(), []);
    assert!(pg.status().active);
    pg
}

/// A primary of two that serves, with its fence loaded.
fn pair() -> Pg {
    let mut pg = Pg::new(PG, OsdId(0), Stored::default(), 16);
    pg.configure(configuration(1, &[0, 1], &[], 2));
    let actions = pg.take_actions();
    let [commit, Action::Send(OsdId(1), Message { config: 1, body: Body::Probe { ticket } })] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*commit, with(Vec::new(), stored(1, 0, 0)));
    pg.committed(1);
    assert_eq!(pg.take_actions(), [], "R25: not before the member has told its position");
    let body = told(*ticket, Position::default(), false);
    pg.message(OsdId(1), Message { config: 1, body });
    sessions(&mut pg);
    pg.request(0, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 0 });
    no_fence(&mut pg);
    assert_eq!(pg.take_actions(), [Action::Reply(0, Ok(Reply::Raised(Fence::default())))]);
    pg
}

fn entry(config: u64, seq: u64, previous: (u64, u64), changes: Vec<Change>) -> Entry {
    Entry {
        position: Position { config, seq },
        previous: Position { config: previous.0, seq: previous.1 },
        changes: Arc::new(changes),
    }
}

fn ack(pg: &mut Pg, config: u64, seq: u64) {
    pg.message(OsdId(1), Message { config, body: Body::Ack { position: Position { config, seq } } });
}

#[test]
fn a_batch_is_written_with_fence_and_position_and_answered_when_durable() {
    let mut pg = alone();
    pg.request(1, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    assert_eq!(pg.take_actions(), [with(changes(1, b"a"), stored(1, 1, 1))]);
    pg.committed(1);
    assert_eq!(pg.take_actions(), [Action::Reply(1, Ok(Reply::Committed { fence_epoch: 1 }))]);
}

#[test]
fn a_write_is_answered_when_all_members_hold_it() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    let appended = entry(1, 1, (0, 0), changes(1, b"a"));
    assert_eq!(pg.take_actions(), [send(1, 1, append(appended)), with(changes(1, b"a"), stored(1, 1, 1))],);
    pg.committed(1);
    assert_eq!(pg.take_actions(), [], "not yet on the other member");
    // R2: a copy of a batch in flight waits for that one.
    pg.request(2, Request::Commit(batch(1, b"a")));
    assert_eq!(pg.take_actions(), []);
    ack(&mut pg, 1, 1);
    let done = Ok(Reply::Committed { fence_epoch: 1 });
    assert_eq!(pg.take_actions(), [Action::Reply(1, done.clone()), Action::Reply(2, done)]);
}

#[test]
fn r25_a_raised_fence_refuses_at_once_but_is_answered_after_all_members_hold_it() {
    let mut pg = pair();
    pg.request(1, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 5 });
    pg.take_actions();
    pg.committed(1);
    // The fence in flight counts; that it exists is told when it cannot be lost.
    pg.request(2, Request::Commit(batch(1, b"a")));
    assert_eq!(pg.take_actions(), []);
    ack(&mut pg, 1, 1);
    let fence = Fence { epoch: 5, applied: (0, 0) };
    assert_eq!(
        pg.take_actions(),
        [Action::Reply(1, Ok(Reply::Raised(fence))), Action::Reply(2, Ok(Reply::Fenced { fence_epoch: 5 }))],
    );
}

#[test]
fn r25_reads_wait_for_writes_in_flight_that_they_overlap() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.take_actions();
    let keys_of = |key| Request::Read(Reads::Keys(vec![keys::record(SHARD, key)]));
    pg.request(2, keys_of(b"a"));
    pg.request(3, keys_of(b"b"));
    let range = Reads::Range { start: keys::record(SHARD, b"a"), end: keys::record(SHARD, b"b") };
    pg.request(4, Request::Read(range));
    assert_eq!(pg.take_actions(), [Action::Fetch(3)]);
    assert_eq!(pg.fetched(3), Verdict::Send);
    pg.committed(1);
    assert_eq!(pg.take_actions(), []);
    ack(&mut pg, 1, 1);
    let done = Action::Reply(1, Ok(Reply::Committed { fence_epoch: 1 }));
    assert_eq!(pg.take_actions(), [done, Action::Fetch(2), Action::Fetch(4)]);
    // A write overtakes the read that is being evaluated: it is evaluated again, after that write.
    pg.request(5, Request::Commit(batch(2, b"a")));
    pg.take_actions();
    assert_eq!(pg.fetched(2), Verdict::Drop);
    assert_eq!(pg.take_actions(), []);
    pg.committed(1);
    ack(&mut pg, 1, 2);
    let done = Action::Reply(5, Ok(Reply::Committed { fence_epoch: 1 }));
    assert_eq!(pg.take_actions(), [done, Action::Fetch(2)]);
    assert_eq!(pg.fetched(2), Verdict::Send);
}

#[test]
fn a_read_that_is_overtaken_again_and_again_keeps_writes_out() {
    let mut pg = alone();
    pg.request(0, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    pg.committed(1);
    pg.take_actions();
    pg.request(99, Request::Read(Reads::Keys(vec![keys::record(SHARD, b"a")])));
    for number in 2..5 {
        assert_eq!(pg.take_actions(), [Action::Fetch(99)]);
        pg.request(number, Request::Commit(batch(number, b"a")));
        pg.take_actions();
        assert_eq!(pg.fetched(99), Verdict::Drop);
        pg.committed(1);
        let actions = pg.take_actions();
        assert_eq!(actions.last(), Some(&Action::Fetch(99)));
        if number < 4 {
            pg.request(1000, Request::Read(Reads::Keys(Vec::new())));
            assert_eq!(pg.fetched(1000), Verdict::Send);
            pg.take_actions();
            // Evaluated again below.
            assert_eq!(pg.fetched(99), Verdict::Send);
            pg.request(99, Request::Read(Reads::Keys(vec![keys::record(SHARD, b"a")])));
        }
    }
}

#[test]
fn r26_below_min_size_writes_are_refused_and_reads_are_not() {
    let mut pg = Pg::new(PG, OsdId(0), Stored::default(), 16);
    pg.configure(configuration(1, &[0], &[], 2));
    pg.take_actions();
    pg.committed(1);
    sessions(&mut pg);
    pg.request(1, Request::Commit(batch(1, b"a")));
    let actions = pg.take_actions();
    let [Action::Reply(1, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::Unavailable);
    pg.request(2, Request::Read(Reads::Keys(Vec::new())));
    assert_eq!(pg.take_actions(), [Action::Fetch(2)]);
}

#[test]
fn i9_a_full_disk_refuses_what_frees_nothing() {
    let mut pg = alone();
    pg.set_full(true);
    pg.request(1, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    let actions = pg.take_actions();
    let [Action::Reply(1, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::NoSpace);
    let mut unlink = batch(1, b"a");
    unlink.changes.push(Change::Delete { key: keys::record(SHARD, b"gone") });
    pg.request(2, Request::Commit(unlink));
    assert!(matches!(pg.take_actions()[..], [Action::Commit(_)]));
}

#[test]
fn an_outsider_and_a_follower_refuse_clients() {
    let mut pg = Pg::new(PG, OsdId(1), Stored::default(), 16);
    for members in [&[0, 2][..], &[0, 1]] {
        pg.configure(configuration(members.len() as u64 + u64::from(members[1]), members, &[], 2));
        pg.take_actions();
        pg.request(1, Request::Read(Reads::Objects));
        let actions = pg.take_actions();
        let [Action::Reply(1, Err(error))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(error.reason, Reason::NotOwner);
    }
}

#[test]
fn r25_a_follower_promises_applies_in_order_and_refuses_older_configurations() {
    let mut pg = Pg::new(PG, OsdId(1), stored(3, 3, 7), 16);
    let message = |config, body| Message { config, body };
    pg.message(OsdId(0), message(4, Body::Probe { ticket: 9 }));
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(4, 3, 7))]);
    pg.committed(1);
    let position = Position { config: 3, seq: 7 };
    assert_eq!(pg.take_actions(), [send(0, 4, told(9, position, false))]);
    let put = || changes(1, b"a");
    // A gap is refused, so that the primary asks again.
    pg.message(OsdId(0), message(4, append(entry(4, 9, (4, 8), put()))));
    assert_eq!(pg.take_actions(), [send(0, 4, Body::Refused { promised: 4 })]);
    pg.message(OsdId(0), message(4, append(entry(4, 8, (3, 7), put()))));
    pg.message(OsdId(0), message(4, append(entry(4, 9, (4, 8), put()))));
    assert_eq!(pg.take_actions(), [with(put(), stored(4, 4, 8)), with(put(), stored(4, 4, 9))]);
    pg.committed(2);
    assert_eq!(pg.take_actions(), [send(0, 4, Body::Ack { position: Position { config: 4, seq: 9 } })]);
    // The old primary is told.
    pg.message(OsdId(2), message(3, append(entry(3, 8, (3, 7), put()))));
    assert_eq!(pg.take_actions(), [send(2, 4, Body::Refused { promised: 4 })]);
    pg.message(OsdId(2), message(3, Body::Probe { ticket: 1 }));
    assert_eq!(pg.take_actions(), [send(2, 4, Body::Refused { promised: 4 })]);
}

#[test]
fn r25_a_write_under_way_at_a_change_is_answered_when_the_new_members_hold_it() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.take_actions();
    pg.committed(1);
    // The other member is replaced.
    pg.configure(configuration(2, &[0, 2], &[], 2));
    let actions = pg.take_actions();
    let [commit, Action::Send(OsdId(2), Message { config: 2, body: Body::Probe { ticket } })] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*commit, with(Vec::new(), stored(2, 1, 1)));
    ack(&mut pg, 1, 1);
    pg.committed(1);
    assert_eq!(pg.take_actions(), [], "an acknowledgement of the old configuration does not count");
    let body = told(*ticket, Position::default(), false);
    pg.message(OsdId(2), Message { config: 2, body });
    let missing = entry(1, 1, (0, 0), changes(1, b"a"));
    assert_eq!(pg.take_actions(), [send(2, 2, append(missing))]);
    let body = Body::Ack { position: Position { config: 1, seq: 1 } };
    pg.message(OsdId(2), Message { config: 2, body });
    assert_eq!(pg.take_actions(), [Action::Reply(1, Ok(Reply::Committed { fence_epoch: 1 }))]);
}

#[test]
fn a_superseded_primary_stops_at_once() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.request(2, Request::Read(Reads::Keys(Vec::new())));
    pg.take_actions();
    pg.message(OsdId(1), Message { config: 2, body: Body::Refused { promised: 2 } });
    let actions = pg.take_actions();
    let [Action::Reply(1, Err(first)), Action::Reply(2, Err(second))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((first.reason, second.reason), (Reason::NotOwner, Reason::NotOwner));
    assert_eq!(pg.fetched(2), Verdict::Drop);
    assert!(!pg.status().active);
}

#[test]
fn r22_tombstones_and_windows_go_when_no_session_can_be_late() {
    let sessions_of = |epoch, live: &[u64]| {
        let live = live.iter().copied().map(ClientId).collect();
        Arc::new(Sessions { epoch: Epoch(epoch), live, next_client_id: 3 })
    };
    let object = ObjectKey { ino: Ino(9), index: 0 };
    let mut pg = alone();
    pg.set_sessions(sessions_of(2, &[1, 2]));
    pg.tick();
    let actions = pg.take_actions();
    let [Action::ListTombstones { ticket, after: None }] = actions[..] else { panic!("{actions:?}") };
    // One of an earlier time: the listing is older than what may have happened since, so it is looked at again.
    pg.tombstones_listed(ticket, vec![(object, 3)], None);
    pg.tick();
    assert_eq!(pg.take_actions(), []);
    pg.set_sessions(sessions_of(3, &[]));
    let actions = pg.take_actions();
    let [Action::Load { ticket, load }] = actions[..] else { panic!("{actions:?}") };
    let header = ObjectHeader { size: 0, generation: 4, deleted: true, sessions_before: 3 };
    pg.loaded(ticket, load, Ok(Loaded::Header(Some(header))));
    assert_eq!(pg.take_actions(), [with(vec![Change::Forget { object }], stored(1, 1, 1))]);
}

#[test]
fn a_tombstone_that_came_to_life_is_not_forgotten() {
    let object = ObjectKey { ino: Ino(9), index: 0 };
    let mut pg = alone();
    pg.tick();
    let actions = pg.take_actions();
    let [Action::ListTombstones { ticket, .. }] = actions[..] else { panic!("{actions:?}") };
    pg.tombstones_listed(ticket, vec![(object, 0)], None);
    pg.tick();
    let actions = pg.take_actions();
    let [Action::Load { ticket, load }] = actions[..] else { panic!("{actions:?}") };
    pg.loaded(ticket, load, Ok(Loaded::Header(Some(ObjectHeader { size: 5, ..ObjectHeader::default() }))));
    assert_eq!(pg.take_actions(), []);
}

#[test]
fn r25_nothing_is_read_between_the_confirmation_of_a_joiner_and_the_map_that_tells() {
    let mut pg = alone();
    pg.configure(configuration(1, &[0], &[1], 1));
    let actions = pg.take_actions();
    let [Action::Send(OsdId(1), Message { config: 1, body: Body::Probe { ticket } })] = &actions[..] else {
        panic!("{actions:?}")
    };
    let body = told(*ticket, Position::default(), false);
    pg.message(OsdId(1), Message { config: 1, body });
    assert_eq!(pg.take_actions(), [Action::Confirm(OsdId(1))], "it holds the same: nothing");
    // The mon may have made a configuration without this OSD, in which another primary takes writes.
    pg.request(1, Request::Read(Reads::Keys(Vec::new())));
    assert_eq!(pg.take_actions(), []);
    pg.configure(configuration(2, &[1], &[], 1));
    let actions = pg.take_actions();
    let [Action::Reply(1, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::NotOwner);
}

/// A member in configuration 4 whose position is 7.
fn member() -> Pg {
    let mut pg = Pg::new(PG, OsdId(1), stored(3, 3, 7), 16);
    pg.configure(configuration(4, &[0, 1], &[], 2));
    pg.message(OsdId(0), Message { config: 4, body: Body::Probe { ticket: 9 } });
    pg.take_actions();
    pg
}

#[test]
fn r25_a_position_counts_nothing_that_was_submitted_after_it_was_asked_for() {
    let mut pg = member();
    pg.message(OsdId(0), Message { config: 4, body: append(entry(4, 8, (3, 7), changes(1, b"a"))) });
    pg.take_actions();
    // The promise is durable, the entry is not.
    pg.committed(1);
    let position = Position { config: 3, seq: 7 };
    assert_eq!(pg.take_actions(), [send(0, 4, told(9, position, false))]);
    pg.committed(1);
    let finish = Body::Finish { ticket: 10, position: Position { config: 4, seq: 8 } };
    pg.message(OsdId(0), Message { config: 4, body: finish });
    pg.message(OsdId(0), Message { config: 4, body: append(entry(4, 9, (4, 8), changes(2, b"b"))) });
    pg.take_actions();
    pg.committed(1);
    let position = Position { config: 4, seq: 8 };
    assert_eq!(pg.take_actions(), [send(0, 4, told(10, position, false))]);
    pg.committed(1);
    assert_eq!(pg.take_actions(), [send(0, 4, Body::Ack { position: Position { config: 4, seq: 9 } })]);
}

/// A primary alone that is to read own content for a joiner, and the ticket of the read.
fn syncing() -> (Pg, u64) {
    let mut pg = alone();
    pg.request(0, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    pg.committed(1);
    pg.take_actions();
    pg.configure(configuration(1, &[0], &[1], 1));
    let actions = pg.take_actions();
    let [Action::Send(OsdId(1), Message { body: Body::Probe { ticket }, .. })] = actions[..] else {
        panic!("{actions:?}")
    };
    let position = Position { config: 9, seq: 9 };
    let body = told(ticket, position, false);
    pg.message(OsdId(1), Message { config: 1, body });
    let page = page_asked(&mut pg).expect("a page");
    (pg, page)
}

/// The page that is asked for, if any.
fn page_asked(pg: &mut Pg) -> Option<u64> {
    pg.take_actions().into_iter().find_map(|action| match action {
        Action::Page { ticket, .. } => Some(ticket),
        _ => None,
    })
}

#[test]
fn a_page_that_cannot_be_read_keeps_no_writes_out_and_is_tried_again() {
    let (mut pg, mut ticket) = syncing();
    // Writes overtake the read until they are kept out.
    for number in 2..5 {
        pg.request(number, Request::Commit(batch(number, b"a")));
        pg.committed(1);
        pg.take_actions();
        let range = PageRange::Records { start: keys::REPLICATED, end: Bytes::new() };
        pg.page(ticket, Some(Page { range, digest: Bytes::new(), objects: Vec::new(), part: None }));
        ticket = page_asked(&mut pg).expect("again");
    }
    pg.request(5, Request::Commit(batch(5, b"a")));
    assert_eq!(pg.take_actions(), [], "kept out");
    pg.page(ticket, None);
    let actions = pg.take_actions();
    assert!(actions.iter().any(|action| matches!(action, Action::Commit(_))), "goes on: {actions:?}");
    pg.committed(1);
    assert_eq!(pg.take_actions(), [Action::Reply(5, Ok(Reply::Committed { fence_epoch: 1 }))]);
    // The pauses grow.
    for ticks in [1, 2, 4] {
        for _ in 1..ticks {
            pg.tick();
            assert_eq!(page_asked(&mut pg), None);
        }
        pg.tick();
        let ticket = page_asked(&mut pg).expect("again");
        pg.page(ticket, None);
    }
}

#[test]
fn r25_a_repeated_batch_waits_for_all_members_however_many_fences_there_are() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.take_actions();
    pg.committed(1);
    for subtree in 2..20_000 {
        pg.request(2, Request::RaiseFence { shard: SHARD, subtree: SubtreeId(subtree), epoch: 0 });
        let actions = pg.take_actions();
        let [Action::Load { ticket, load }] = actions[..] else { panic!("{actions:?}") };
        pg.loaded(ticket, load, Ok(Loaded::Fence(None)));
        assert_eq!(pg.take_actions(), [Action::Reply(2, Ok(Reply::Raised(Fence::default())))]);
    }
    pg.request(3, Request::Commit(batch(1, b"a")));
    assert_eq!(pg.take_actions(), [], "durable here, but not on the other member");
    ack(&mut pg, 1, 1);
    let done = Ok(Reply::Committed { fence_epoch: 1 });
    assert_eq!(pg.take_actions(), [Action::Reply(1, done.clone()), Action::Reply(3, done)]);
}

#[test]
fn i10_a_damaged_member_takes_nothing_but_everything_anew() {
    let mut pg = Pg::damaged(PG, OsdId(1), stored(4, 4, 7), 16, 4);
    pg.configure(configuration(4, &[0, 1], &[], 2));
    let refused = || [send(0, 4, Body::Refused { promised: 4 })];
    pg.tick();
    assert_eq!(pg.take_actions(), refused(), "its primary has to know");
    let position = Position { config: 4, seq: 8 };
    for body in
        [append(entry(4, 8, (4, 7), changes(1, b"a"))), Body::Finish { ticket: 3, position }, Body::Begin { position }]
    {
        pg.message(OsdId(0), Message { config: 4, body });
        assert_eq!(pg.take_actions(), refused(), "meant for the copy before the damage");
    }
    pg.message(OsdId(0), Message { config: 4, body: Body::Probe { ticket: 9 } });
    pg.take_actions();
    pg.committed(1);
    let mine = Position { config: 4, seq: 7 };
    assert_eq!(pg.take_actions(), [send(0, 4, told(9, mine, true))]);
    pg.tick();
    assert_eq!(pg.take_actions(), []);
    pg.message(OsdId(0), Message { config: 4, body: Body::Begin { position } });
    let begun = Stored { promised: 4, position, incomplete: true, ..Stored::default() };
    assert_eq!(pg.take_actions(), [with(Vec::new(), begun)]);
    pg.message(OsdId(0), Message { config: 4, body: Body::Finish { ticket: 10, position } });
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(4, 4, 8))]);
    pg.committed(2);
    assert_eq!(pg.take_actions(), [send(0, 4, told(10, position, false))]);
    assert!(!pg.status().incomplete);
}

#[test]
fn i10_a_damaged_copy_concerns_its_group_if_it_is_the_primary_of_others() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    assert_eq!(pg.concerned(), Concerned::Group);
    let mut pg = Pg::damaged(PG, OsdId(0), stored(1, 1, 0), 16, 1);
    pg.configure(configuration(1, &[0, 1], &[], 2));
    assert_eq!(pg.take_actions(), [Action::Demote(OsdId(0))], "the other holds all that was acknowledged");
    pg.request(2, Request::Read(Reads::Keys(Vec::new())));
    let actions = pg.take_actions();
    let [Action::Reply(2, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::Unavailable);
    // As after a crash: all that was acknowledged is here.
    pg.configure(configuration(2, &[0], &[], 1));
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(2, 1, 0))]);
    pg.committed(1);
    sessions(&mut pg);
    assert!(pg.status().active);

    let mut pg = alone();
    pg.request(7, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    assert_eq!(pg.concerned(), Concerned::Request(Some(7)));
    assert_eq!(member().concerned(), Concerned::Copy);
}

#[test]
fn r25_a_pull_whose_answer_is_lost_is_repeated() {
    let mut pg = Pg::new(PG, OsdId(0), stored(1, 1, 3), 16);
    pg.configure(configuration(2, &[0, 1], &[], 2));
    pg.committed(1);
    for _ in 0..2 {
        let actions = pg.take_actions();
        let ticket = actions.iter().find_map(|action| match action {
            Action::Send(OsdId(1), Message { body: Body::Probe { ticket }, .. }) => Some(*ticket),
            _ => None,
        });
        let position = Position { config: 1, seq: 4 };
        let body = told(ticket.expect("a probe"), position, false);
        pg.message(OsdId(1), Message { config: 2, body });
        let actions = pg.take_actions();
        assert!(
            matches!(actions[..], [Action::Send(OsdId(1), Message { body: Body::Pull { .. }, .. })]),
            "{actions:?}"
        );
        pg.peer_connected(OsdId(1));
    }
}

/// A primary in configuration 2 of three that is at write 3 of configuration 1, and the tickets of its probes.
fn peering(stored: Stored) -> (Pg, BTreeMap<u32, u64>) {
    let mut pg = Pg::new(PG, OsdId(0), stored, 16);
    pg.configure(configuration(2, &[0, 1, 2], &[], 2));
    pg.committed(1);
    let tickets = pg.take_actions().into_iter().filter_map(|action| match action {
        Action::Send(OsdId(to), Message { body: Body::Probe { ticket }, .. }) => Some((to, ticket)),
        _ => None,
    });
    let tickets: BTreeMap<_, _> = tickets.collect();
    assert_eq!(tickets.len(), 2);
    (pg, tickets)
}

fn tell(pg: &mut Pg, from: u32, ticket: u64, seq: u64, incomplete: bool) {
    let body = told(ticket, Position { config: 1, seq }, incomplete);
    pg.message(OsdId(from), Message { config: 2, body });
}

fn refuses(pg: &mut Pg) -> String {
    pg.request(77, Request::Read(Reads::Keys(Vec::new())));
    let actions = pg.take_actions();
    let [Action::Reply(77, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::Unavailable);
    error.message.clone()
}

#[test]
fn i1_a_copy_that_lost_its_tail_makes_way_for_one_that_did_not() {
    let (mut pg, tickets) = peering(stored(1, 1, 3));
    tell(&mut pg, 1, tickets[&1], 3, false);
    tell(&mut pg, 2, tickets[&2], 9, false);
    let actions = pg.take_actions();
    let [Action::Send(OsdId(2), Message { body: Body::Pull { ticket, after }, .. })] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*after, Position { config: 1, seq: 3 });
    let body = Body::Entries { ticket: *ticket, entries: Vec::new() };
    pg.message(OsdId(2), Message { config: 2, body });
    assert_eq!(pg.take_actions(), [Action::Demote(OsdId(0))], "nobody is overwritten");
    assert!(refuses(&mut pg).contains("another member holds"));
    pg.configure(configuration(3, &[1, 2], &[0], 2));
    assert_eq!(pg.take_actions(), []);
    pg.message(OsdId(1), Message { config: 3, body: Body::Probe { ticket: 1 } });
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(3, 1, 3))]);
}

#[test]
fn r26_an_incomplete_primary_makes_way_for_a_complete_member() {
    let incomplete = Stored { incomplete: true, ..stored(1, 1, 9) };
    let (mut pg, tickets) = peering(incomplete);
    tell(&mut pg, 1, tickets[&1], 9, true);
    assert_eq!(pg.take_actions(), []);
    tell(&mut pg, 2, tickets[&2], 4, false);
    assert_eq!(pg.take_actions(), [Action::Demote(OsdId(0))]);

    let (mut pg, tickets) = peering(incomplete);
    tell(&mut pg, 1, tickets[&1], 9, true);
    tell(&mut pg, 2, tickets[&2], 9, true);
    assert_eq!(pg.take_actions(), []);
    assert!(refuses(&mut pg).contains("no complete copy"));
}

#[test]
fn r26_a_member_that_is_brought_everything_anew_is_none_meanwhile() {
    let (mut pg, tickets) = peering(stored(1, 1, 9));
    tell(&mut pg, 1, tickets[&1], 9, false);
    tell(&mut pg, 2, tickets[&2], 9, true);
    assert_eq!(pg.take_actions(), [Action::Demote(OsdId(2))]);
    pg.peer_connected(OsdId(2));
    let actions = pg.take_actions();
    let [Action::Send(OsdId(2), Message { body: Body::Probe { ticket }, .. })] = actions[..] else {
        panic!("{actions:?}")
    };
    tell(&mut pg, 2, ticket, 9, true);
    assert_eq!(pg.take_actions(), [], "the mon was asked already");
    pg.configure(configuration(3, &[0, 1], &[2], 2));
    let actions = pg.take_actions();
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Send(..))).count(), 2, "{actions:?}");
}

#[test]
fn i1_what_was_decided_is_told_with_the_next_write_and_kept() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.committed(1);
    ack(&mut pg, 1, 1);
    pg.take_actions();
    pg.request(2, Request::Commit(batch(2, b"b")));
    let decided = Position { config: 1, seq: 1 };
    let known = Stored { decided, ..stored(1, 1, 2) };
    let appended = Body::Append(entry(1, 2, (1, 1), changes(2, b"b")), decided);
    assert_eq!(pg.take_actions(), [send(1, 1, appended.clone()), with(changes(2, b"b"), known)]);

    let mut pg = Pg::new(PG, OsdId(1), stored(1, 1, 1), 16);
    pg.configure(configuration(1, &[0, 1], &[], 2));
    pg.message(OsdId(0), Message { config: 1, body: Body::Probe { ticket: 4 } });
    pg.committed(1);
    pg.take_actions();
    pg.message(OsdId(0), Message { config: 1, body: appended });
    assert_eq!(pg.take_actions(), [with(changes(2, b"b"), known)]);
    pg.message(OsdId(0), Message { config: 1, body: Body::Probe { ticket: 5 } });
    pg.committed(2);
    let told = Told { position: Position { config: 1, seq: 2 }, decided, incomplete: false };
    assert!(pg.take_actions().contains(&send(0, 1, Body::Position { ticket: 5, told })));
}

#[test]
fn i1_the_only_member_serves_nothing_once_another_knows_what_it_lost() {
    for (position, decided, found) in [
        // What the other has beyond was never acknowledged, as far as anybody knows.
        (Position { config: 1, seq: 9 }, Position { config: 1, seq: 1 }, false),
        (Position { config: 1, seq: 9 }, Position { config: 1, seq: 7 }, true),
    ] {
        let mut pg = alone();
        pg.request(1, Request::Commit(batch(1, b"a")));
        no_fence(&mut pg);
        pg.committed(1);
        pg.take_actions();
        pg.configure(configuration(1, &[0], &[1], 1));
        let actions = pg.take_actions();
        let [Action::Send(OsdId(1), Message { body: Body::Probe { ticket }, .. })] = actions[..] else {
            panic!("{actions:?}")
        };
        pg.request(2, Request::Read(Reads::Objects));
        assert_eq!(pg.take_actions(), [Action::Fetch(2)]);
        let told = Told { position, decided, incomplete: false };
        pg.message(OsdId(1), Message { config: 1, body: Body::Position { ticket, told } });
        let actions = pg.take_actions();
        if !found {
            assert!(
                matches!(actions[0], Action::Send(OsdId(1), Message { body: Body::Begin { .. }, .. })),
                "{actions:?}"
            );
            continue;
        }
        let [Action::Reply(2, Err(error)), Action::Lost(OsdId(1))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(error.reason, Reason::Unavailable);
        assert_eq!(pg.fetched(2), Verdict::Drop);
        assert!(refuses(&mut pg).contains("osd.1"));
        // R26: an administrator gave those writes up. The other is brought to what is here.
        pg.configure(Configuration { forgiven: 2, ..configuration(2, &[0], &[1], 1) });
        let actions = pg.take_actions();
        let [Action::Commit(_), Action::Send(OsdId(1), Message { body: Body::Probe { ticket }, .. })] = actions[..]
        else {
            panic!("{actions:?}")
        };
        pg.committed(1);
        sessions(&mut pg);
        assert!(pg.status().active);
        pg.message(OsdId(1), Message { config: 2, body: Body::Position { ticket, told } });
        let begins = |action: &Action| matches!(action, Action::Send(_, Message { body: Body::Begin { .. }, .. }));
        assert!(pg.take_actions().iter().any(begins) && pg.status().active);
        // What is acknowledged from now on is not given up.
        let later = Told { decided: Position { config: 2, seq: 9 }, ..told };
        pg.peer_connected(OsdId(1));
        let ticket = match &pg.take_actions()[..] {
            [Action::Send(_, Message { body: Body::Probe { ticket }, .. })] => *ticket,
            other => panic!("{other:?}"),
        };
        pg.message(OsdId(1), Message { config: 2, body: Body::Position { ticket, told: later } });
        assert!(pg.take_actions().contains(&Action::Lost(OsdId(1))));
    }
}

#[test]
fn r26_nobody_but_the_primary_orders_writes_and_nobody_but_a_peer_answers() {
    let mut pg = member();
    pg.committed(1);
    pg.take_actions();
    let write = || Message { config: 4, body: append(entry(4, 8, (3, 7), changes(1, b"a"))) };
    pg.message(OsdId(2), write());
    pg.message(OsdId(2), Message { config: 4, body: Body::Finish { ticket: 1, position: Position::default() } });
    assert_eq!(pg.take_actions(), []);
    pg.message(OsdId(0), write());
    assert!(matches!(pg.take_actions()[..], [Action::Commit(_)]));

    let mut pg = pair();
    pg.message(OsdId(7), Message { config: 1, body: Body::Refused { promised: 99 } });
    assert!(pg.status().active);
}

#[test]
fn r2_each_subtree_has_a_fence_of_its_own_in_a_shard() {
    let mut pg = pair();
    pg.request(1, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 5 });
    pg.take_actions();
    pg.request(2, Request::Commit(Batch { subtree: SubtreeId(2), ..batch(1, b"a") }));
    let actions = pg.take_actions();
    let [Action::Load { ticket, load: load @ Load::Fence(SHARD, SubtreeId(2)) }] = actions[..] else {
        panic!("{actions:?}")
    };
    pg.loaded(ticket, load, Ok(Loaded::Fence(None)));
    pg.committed(2);
    ack(&mut pg, 1, 2);
    assert!(pg.take_actions().contains(&Action::Reply(2, Ok(Reply::Committed { fence_epoch: 1 }))));
}
