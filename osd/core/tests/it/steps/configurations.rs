//! Members that come and go (R25, R26).

use super::*;

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
    assert_eq!(pg.take_actions(), [send(0, 4, acked(Position { config: 4, seq: 9 }))]);
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
    let body = acked(Position { config: 1, seq: 1 });
    pg.message(OsdId(2), Message { config: 2, body });
    assert_eq!(pg.take_actions(), [Action::Reply(1, Ok(Reply::Committed { fence_epoch: 1 }))]);
}

#[test]
fn r26_a_write_under_way_is_not_acknowledged_by_fewer_than_min_size() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.take_actions();
    pg.committed(1);
    // The other member, which may not have it, is down.
    pg.configure(configuration(2, &[0], &[], 2));
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(2, 1, 1))]);
    pg.committed(1);
    let actions = pg.take_actions();
    let [Action::Reply(1, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::Unavailable, "I1: {error}");
    // It is back, and has all: the repeated one is told.
    pg.configure(configuration(3, &[0, 1], &[], 2));
    let actions = pg.take_actions();
    let [_, Action::Send(OsdId(1), Message { config: 3, body: Body::Probe { ticket } })] = &actions[..] else {
        panic!("{actions:?}")
    };
    pg.committed(1);
    let body = told(*ticket, Position { config: 1, seq: 1 }, false);
    pg.message(OsdId(1), Message { config: 3, body });
    pg.request(2, Request::Commit(batch(1, b"a")));
    assert_eq!(pg.take_actions(), [Action::Reply(2, Ok(Reply::Committed { fence_epoch: 1 }))]);
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
    assert_eq!(pg.take_actions(), [send(0, 4, acked(Position { config: 4, seq: 9 }))]);
}
