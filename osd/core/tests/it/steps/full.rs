//! Disks that are full (I9).

use super::*;

#[test]
fn i9_a_full_disk_refuses_what_frees_nothing() {
    let mut pg = alone();
    pg.set_full(true);
    pg.request(1, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    let actions = pg.take_actions();
    let [Action::Reply(1, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(error.reason, Reason::NoSpace);
    // Each commit of a subtree deletes records of what was answered: that frees nothing that lasts.
    let mut create = batch(1, b"a");
    create.changes.push(Change::Delete { key: keys::record(SHARD, b"gone") });
    pg.request(2, Request::Commit(create.clone()));
    assert_no_space(&mut pg, 2);
    let unlink = Batch { uses_reserve: true, ..create };
    pg.request(3, Request::Commit(unlink));
    assert!(matches!(pg.take_actions()[..], [Action::Commit(_)]));
}

/// What the member says of its space, with nothing new to acknowledge.
fn tell_space(pg: &mut Pg, full: bool) {
    let body = Body::Ack { position: Position::default(), full };
    pg.message(OsdId(1), Message { config: 1, body });
}

fn write(sequence: u64) -> Request {
    let object = ObjectKey { ino: Ino(7), index: 0 };
    let kind = MutationKind::Write { offset: 0, data: Bytes::from_static(b"data") };
    Request::Mutate(Mutation { session: ClientId(1), sequence, low_water: 0, generation: 0, object, kind })
}

fn with_session(pg: &mut Pg) {
    let sessions = Sessions { epoch: Epoch(1), live: [ClientId(1)].into(), next_client_id: 2 };
    pg.set_sessions(Arc::new(sessions));
}

/// There is neither the object nor a floor of its file.
fn no_header(pg: &mut Pg) {
    let actions = pg.take_actions();
    assert_eq!(actions.len(), 2, "{actions:?}");
    for action in actions {
        let Action::Load { ticket, load: load @ Load::Header(_) } = action else { panic!("{action:?}") };
        pg.loaded(ticket, load, Ok(Loaded::Header(None)));
    }
}

fn assert_no_space(pg: &mut Pg, token: Token) {
    let actions = pg.take_actions();
    let [Action::Reply(told, Err(error))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((*told, error.reason), (token, Reason::NoSpace));
}

fn assert_taken(pg: &mut Pg) {
    let actions = pg.take_actions();
    let [Action::Send(OsdId(1), Message { body: Body::Append(..), .. }), Action::Commit(_)] = actions[..] else {
        panic!("{actions:?}")
    };
}

#[test]
fn the_primary_refuses_what_a_full_member_has_no_space_for() {
    let mut pg = pair();
    with_session(&mut pg);
    tell_space(&mut pg, true);
    pg.request(1, Request::Commit(batch(1, b"a")));
    assert_no_space(&mut pg, 1);
    pg.request(2, write(1));
    no_header(&mut pg);
    assert_no_space(&mut pg, 2);
    // What frees something passes, and so does what was promised before (R5): its sender says so.
    pg.request(3, Request::Commit(Batch { uses_reserve: true, ..batch(1, b"a") }));
    assert_taken(&mut pg);
    pg.request(4, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 2 });
    assert_taken(&mut pg);
    pg.committed(2);
    let full = |seq| Body::Ack { position: Position { config: 1, seq }, full: true };
    pg.message(OsdId(1), Message { config: 1, body: full(2) });
    assert_eq!(pg.take_actions().len(), 2, "both are answered");
    tell_space(&mut pg, false);
    pg.request(5, write(2));
    assert_taken(&mut pg);
    // Said with an acknowledgement, or by one that comes back: it counts the same.
    pg.message(OsdId(1), Message { config: 1, body: full(3) });
    pg.request(6, write(3));
    assert_no_space(&mut pg, 6);
    tell_space(&mut pg, false);
    pg.peer_connected(OsdId(1));
    let actions = pg.take_actions();
    let [Action::Send(_, Message { body: Body::Probe { ticket }, .. })] = actions[..] else { panic!("{actions:?}") };
    let position = Position { config: 1, seq: 3 };
    let told = Told { position, decided: Position::default(), incomplete: false, full: true };
    pg.message(OsdId(1), Message { config: 1, body: Body::Position { ticket, told } });
    pg.take_actions();
    pg.request(7, write(4));
    assert_no_space(&mut pg, 7);
}

#[test]
fn a_member_tells_of_its_space_with_what_it_acknowledges_and_when_it_changes() {
    let mut pg = member();
    // It becomes full before the promise is durable: what is told then must not be older.
    pg.set_full(true);
    let nothing = |full| send(0, 4, Body::Ack { position: Position::default(), full });
    assert_eq!(pg.take_actions(), [nothing(true)]);
    pg.committed(1);
    let position = Position { config: 3, seq: 7 };
    let told = Told { position, decided: Position::default(), incomplete: false, full: true };
    assert_eq!(pg.take_actions(), [send(0, 4, Body::Position { ticket: 9, told })]);
    pg.message(OsdId(0), Message { config: 4, body: append(entry(4, 8, (3, 7), changes(1, b"a"))) });
    pg.committed(1);
    let actions = pg.take_actions();
    let position = Position { config: 4, seq: 8 };
    assert_eq!(actions.last(), Some(&send(0, 4, Body::Ack { position, full: true })));
    pg.set_full(true);
    assert_eq!(pg.take_actions(), []);
    pg.set_full(false);
    assert_eq!(pg.take_actions(), [nothing(false)], "nobody would hear of it otherwise: nothing is written any more");
}

/// A joiner is no reason to refuse anything, and is not filled until it stops.
#[test]
fn a_full_joiner_waits_until_it_has_space() {
    let probed = |pg: &mut Pg| {
        let actions = pg.take_actions();
        let [Action::Send(OsdId(1), Message { body: Body::Probe { ticket }, .. })] = actions[..] else {
            panic!("{actions:?}")
        };
        ticket
    };
    let tell = |pg: &mut Pg, ticket, incomplete, full| {
        // Not from the log.
        let position = Position { config: 1, seq: 9 };
        let told = Told { position, decided: Position::default(), incomplete, full };
        pg.message(OsdId(1), Message { config: 1, body: Body::Position { ticket, told } });
    };
    let begins = |pg: &mut Pg| {
        let actions = pg.take_actions();
        let Action::Send(OsdId(1), Message { body: Body::Begin { .. }, .. }) = actions[0] else {
            panic!("{actions:?}")
        };
    };
    let mut pg = alone();
    with_session(&mut pg);
    pg.request(1, write(1));
    no_header(&mut pg);
    pg.committed(1);
    pg.take_actions();
    pg.configure(configuration(1, &[0], &[1], 1));
    let ticket = probed(&mut pg);
    tell(&mut pg, ticket, false, true);
    assert_eq!(pg.take_actions(), []);
    tell_space(&mut pg, false);
    begins(&mut pg);
    tell_space(&mut pg, true);
    let ticket = probed(&mut pg);
    tell(&mut pg, ticket, true, true);
    pg.request(2, write(2));
    assert!(matches!(pg.take_actions()[..], [Action::Commit(_)]), "for the only member, and not sent to the joiner");
    pg.committed(1);
    assert!(matches!(pg.take_actions()[..], [Action::Reply(2, Ok(_))]));
    tell_space(&mut pg, false);
    begins(&mut pg);
}

/// It was away for a moment. Without it there may be too few members for a delete.
#[test]
fn i9_a_full_joiner_that_lacks_nothing_or_little_follows() {
    for seq in [0, 1] {
        let mut pg = alone();
        with_session(&mut pg);
        pg.request(1, write(1));
        no_header(&mut pg);
        pg.committed(1);
        pg.take_actions();
        pg.configure(configuration(1, &[0], &[1], 1));
        let actions = pg.take_actions();
        let [Action::Send(OsdId(1), Message { body: Body::Probe { ticket }, .. })] = actions[..] else {
            panic!("{actions:?}")
        };
        let position = if seq == 0 { Position::default() } else { Position { config: 1, seq } };
        let told = Told { position, decided: Position::default(), incomplete: false, full: true };
        pg.message(OsdId(1), Message { config: 1, body: Body::Position { ticket, told } });
        let mut actions = pg.take_actions();
        if seq == 0 {
            let [Action::Send(OsdId(1), Message { body: Body::Append(..), .. })] = actions[..] else {
                panic!("{actions:?}")
            };
            let body = Body::Ack { position: Position { config: 1, seq: 1 }, full: true };
            pg.message(OsdId(1), Message { config: 1, body });
            actions = pg.take_actions();
        }
        assert_eq!(actions, [Action::Confirm(OsdId(1))], "it lacked {}", 1 - seq);
        pg.request(2, write(2));
        assert_no_space(&mut pg, 2);
    }
}
