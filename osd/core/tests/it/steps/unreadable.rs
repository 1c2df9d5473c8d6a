//! Own content that a primary cannot read, or not understand (I10).

use pando_osd_core::Purge;

use super::*;

fn corrupt() -> Error {
    Error::new(Reason::Corrupt, "a bit flipped")
}

fn failed() -> Error {
    Error::new(Reason::Storage, "the disk does not answer")
}

/// A primary of `members` in configuration `number`, to whom all have told that they are at its position.
fn peered(stored: Stored, number: u64, members: &[u32]) -> Pg {
    let mut pg = Pg::new(PG, OsdId(0), stored, 16);
    configure_and_peer(&mut pg, number, members, stored.position);
    pg
}

fn configure_and_peer(pg: &mut Pg, number: u64, members: &[u32], position: Position) {
    pg.configure(configuration(number, members, &[], 1));
    pg.committed(1);
    for action in pg.take_actions() {
        if let Action::Send(from, Message { body: Body::Probe { ticket }, .. }) = action {
            pg.message(from, Message { config: number, body: told(ticket, position, false) });
        }
    }
}

/// Asks for sessions, and nothing else.
fn asks_for_sessions(pg: &mut Pg) -> u64 {
    let actions = pg.take_actions();
    let [Action::LoadSessions(ticket)] = actions[..] else { panic!("{actions:?}") };
    ticket
}

fn asks_for_fence(pg: &mut Pg) -> (u64, Load) {
    let actions = pg.take_actions();
    let [Action::Load { ticket, load }] = actions[..] else { panic!("{actions:?}") };
    (ticket, load)
}

/// All tokens are told to ask another OSD, and the mon is asked for one.
fn assert_makes_way(pg: &mut Pg, tokens: &[Token]) {
    let mut actions = pg.take_actions();
    assert_eq!(actions.pop(), Some(Action::Demote(OsdId(0))), "{actions:?}");
    let told = actions.iter().map(|action| match action {
        Action::Reply(token, Err(error)) if error.reason == Reason::Unavailable => *token,
        other => panic!("{other:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), tokens);
    assert!(!pg.status().active && pg.status().incomplete);
}

fn assert_refused(pg: &mut Pg, token: Token, reason: Reason) {
    let actions = pg.take_actions();
    assert!(
        matches!(&actions[..], [Action::Reply(told, Err(error))] if *told == token && error.reason == reason),
        "{actions:?}"
    );
}

/// Has the copy brought everything anew by osd.1 in this configuration.
fn replace(pg: &mut Pg, number: u64, position: Position) {
    pg.configure(configuration(number, &[1], &[0], 1));
    pg.message(OsdId(1), Message { config: number, body: Body::Probe { ticket: 1 } });
    pg.committed(1);
    let told = pg.take_actions().into_iter().find_map(|action| match action {
        Action::Send(OsdId(1), Message { body: Body::Position { told, .. }, .. }) => Some(told),
        _ => None,
    });
    assert!(told.is_some_and(|told| told.incomplete), "the next primary must not count on what is here: {told:?}");
    pg.message(OsdId(1), Message { config: number, body: Body::Begin { position } });
    pg.message(OsdId(1), Message { config: number, body: Body::Finish { ticket: 2, position } });
    pg.committed(2);
    pg.take_actions();
    assert!(!pg.status().incomplete);
}

#[test]
fn a_fence_that_rotted_makes_way_for_a_member_that_can_read_it() {
    let mut pg = peered(stored(1, 1, 3), 2, &[0, 1]);
    sessions(&mut pg);
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.request(2, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 5 });
    pg.request(3, Request::Read(Reads::Objects));
    let actions = pg.take_actions();
    let [Action::Load { ticket, load }, Action::Fetch(3)] = actions[..] else { panic!("{actions:?}") };
    pg.loaded(ticket, load, Err(corrupt()));
    assert_makes_way(&mut pg, &[3, 1, 2]);
    pg.request(4, Request::Read(Reads::Objects));
    assert_refused(&mut pg, 4, Reason::Unavailable);
    replace(&mut pg, 3, Position { config: 1, seq: 3 });
}

#[test]
fn sessions_that_rotted_make_way_for_a_member_that_can_read_them() {
    let mut pg = peered(stored(1, 1, 3), 2, &[0, 1, 2]);
    pg.request(1, Request::Read(Reads::Objects));
    let ticket = asks_for_sessions(&mut pg);
    pg.sessions_loaded(ticket, Err(corrupt()));
    assert_makes_way(&mut pg, &[1]);
}

#[test]
fn what_a_client_reads_makes_way_too_and_an_answer_in_flight_is_not_lost() {
    let mut pg = pair();
    pg.request(1, Request::Commit(batch(1, b"a")));
    pg.request(2, Request::Read(Reads::Objects));
    pg.take_actions();
    assert_eq!(pg.unreadable(2, &corrupt()), Verdict::Drop);
    assert_makes_way(&mut pg, &[1, 2]);
    assert_eq!(pg.fetched(2), Verdict::Drop);
    // That write may be acknowledged by whoever comes next: it is here as well, but not to be counted on.
    pg.committed(1);
    ack(&mut pg, 1, 1);
    assert_eq!(pg.take_actions(), []);
}

#[test]
fn a_page_that_stays_unreadable_makes_way() {
    let mut pg = pair();
    pg.configure(configuration(1, &[0, 1], &[2], 2));
    let actions = pg.take_actions();
    let [Action::Send(OsdId(2), Message { body: Body::Probe { ticket }, .. })] = actions[..] else {
        panic!("{actions:?}")
    };
    // Not from the log.
    let position = Position { config: 1, seq: 9 };
    pg.message(OsdId(2), Message { config: 1, body: told(ticket, position, false) });
    let mut actions = pg.take_actions();
    let mut failures = 0;
    for _ in 0..20 {
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Page { ticket, .. } => {
                    failures += 1;
                    pg.page(ticket, None);
                }
                Action::Demote(OsdId(0)) => {
                    assert!(failures > 1, "a transient failure was not tried again");
                    return;
                }
                _ => {}
            }
        }
        pg.tick();
        actions = pg.take_actions();
    }
    panic!("it does not make way");
}

#[test]
fn a_disk_that_fails_for_a_moment_is_asked_again() {
    let mut pg = peered(stored(1, 1, 3), 2, &[0, 1]);
    let ticket = asks_for_sessions(&mut pg);
    pg.sessions_loaded(ticket, Err(failed()));
    assert_eq!(pg.take_actions(), [], "not in the same breath");
    pg.tick();
    sessions(&mut pg);
    pg.request(1, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 0 });
    pg.request(2, Request::Read(Reads::Keys(Vec::new())));
    let actions = pg.take_actions();
    let [Action::Load { ticket, load }, Action::Fetch(2)] = actions[..] else { panic!("{actions:?}") };
    pg.loaded(ticket, load, Err(failed()));
    assert_eq!(pg.unreadable(2, &failed()), Verdict::Drop);
    assert_eq!(pg.take_actions(), []);
    pg.tick();
    assert!(pg.take_actions().contains(&Action::Fetch(2)));
    pg.loaded(ticket, load, Ok(Loaded::Fence(None)));
    assert_eq!(pg.take_actions(), [Action::Reply(1, Ok(Reply::Raised(Fence::default())))]);
    assert_eq!(pg.fetched(2), Verdict::Send);
    assert!(pg.status().active);
}

/// Asks for the objects of a file that is deleted, and nothing else.
fn asks_for_list(pg: &mut Pg) -> u64 {
    let actions = pg.take_actions();
    let [Action::ListObjects { ticket, after: None }] = actions[..] else { panic!("{actions:?}") };
    ticket
}

/// A purge whose floor is the first entry of the log, up to its list.
fn purge(pg: &mut Pg, token: Token) -> u64 {
    let sessions = Sessions { epoch: Epoch(1), live: [ClientId(1)].into(), next_client_id: 2 };
    pg.set_sessions(Arc::new(sessions));
    let (object, kind) = (ObjectKey { ino: Ino(0), index: 0 }, MutationKind::Delete);
    let first = Mutation { session: ClientId(1), sequence: 1, low_water: 1, generation: 2, object, kind };
    pg.request(token, Request::Purge(Box::new(Purge::new(first))));
    let actions = pg.take_actions();
    let [Action::Load { ticket, load: load @ Load::Header(_) }] = actions[..] else { panic!("{actions:?}") };
    pg.loaded(ticket, load, Ok(Loaded::Header(None)));
    pg.take_actions();
    ack(pg, 1, 1);
    pg.committed(1);
    asks_for_list(pg)
}

#[test]
fn i10_a_list_of_what_is_deleted_that_rotted_makes_way() {
    let mut pg = pair();
    let ticket = purge(&mut pg, 1);
    pg.objects_listed(ticket, Err(corrupt()));
    assert_makes_way(&mut pg, &[1]);

    let mut pg = alone();
    let ticket = purge(&mut pg, 1);
    pg.objects_listed(ticket, Err(corrupt()));
    assert_refused(&mut pg, 1, Reason::Corrupt);
    assert!(pg.status().active);
}

#[test]
fn i10_a_list_of_what_is_deleted_that_fails_is_asked_for_again_before_it_makes_way() {
    // Lists again after a failure: `None` once it makes way instead.
    let fail = |pg: &mut Pg, ticket| {
        pg.objects_listed(ticket, Err(failed()));
        if pg.status().incomplete {
            return None;
        }
        assert_eq!(pg.take_actions(), [], "not in the same breath");
        pg.tick();
        let mut actions = pg.take_actions().into_iter();
        let again = actions.find_map(|action| match action {
            Action::ListObjects { ticket, after: None } => Some(ticket),
            _ => None,
        });
        Some(again.expect("another list"))
    };
    let mut pg = pair();
    let ticket = purge(&mut pg, 1);
    let ticket = fail(&mut pg, ticket).unwrap();
    pg.objects_listed(ticket, Ok((Vec::new(), false)));
    pg.take_actions();
    ack(&mut pg, 1, 2);
    pg.committed(1);
    assert_eq!(pg.take_actions(), [Action::Reply(1, Ok(Reply::Trimmed))]);

    let mut pg = pair();
    let mut ticket = purge(&mut pg, 1);
    for _ in 0..20 {
        match fail(&mut pg, ticket) {
            Some(next) => ticket = next,
            None => return assert_makes_way(&mut pg, &[1]),
        }
    }
    panic!("it does not make way");
}

#[test]
fn a_disk_that_goes_on_failing_makes_way() {
    let mut pg = peered(stored(1, 1, 3), 2, &[0, 1]);
    let mut ticket = asks_for_sessions(&mut pg);
    for _ in 0..20 {
        pg.sessions_loaded(ticket, Err(failed()));
        let actions = pg.take_actions();
        if actions == [Action::Demote(OsdId(0))] {
            return;
        }
        assert_eq!(actions, []);
        pg.tick();
        ticket = asks_for_sessions(&mut pg);
    }
    panic!("it does not make way");
}

#[test]
fn the_only_copy_refuses_what_it_cannot_read_and_serves_the_rest() {
    let mut pg = alone();
    pg.request(1, Request::Commit(batch(1, b"a")));
    let (ticket, load) = asks_for_fence(&mut pg);
    pg.loaded(ticket, load, Err(corrupt()));
    assert_refused(&mut pg, 1, Reason::Corrupt);
    pg.request(2, Request::Read(Reads::Objects));
    assert_eq!(pg.take_actions(), [Action::Fetch(2)]);
    assert_eq!(pg.unreadable(2, &corrupt()), Verdict::Send, "the error");
    assert!(pg.status().active);
    // Perhaps it can be read the next time.
    pg.request(3, Request::Commit(batch(1, b"a")));
    no_fence(&mut pg);
    assert!(matches!(pg.take_actions()[..], [Action::Commit(_)]));

    let mut pg = Pg::new(PG, OsdId(0), stored(1, 1, 3), 16);
    pg.configure(configuration(2, &[0], &[], 1));
    pg.committed(1);
    for number in 0..10 {
        pg.request(number, Request::Read(Reads::Objects));
        let actions = pg.take_actions();
        let Some(Action::LoadSessions(ticket)) = actions.last().cloned() else { panic!("{actions:?}") };
        pg.sessions_loaded(ticket, Err(failed()));
        pg.tick();
    }
    let actions = pg.take_actions();
    assert!(
        actions.iter().any(|action| matches!(action, Action::Reply(_, Err(error)) if error.reason == Reason::Storage))
    );
    let Some(Action::LoadSessions(ticket)) = actions.last() else { panic!("{actions:?}") };
    pg.sessions_loaded(*ticket, Ok(Vec::new()));
    assert!(pg.status().active, "a disk may recover");
}

#[test]
fn i1_it_makes_way_only_for_a_member_that_is_known_to_hold_all() {
    let mut pg = pair();
    pg.request(1, Request::Read(Reads::Objects));
    assert_eq!(pg.take_actions(), [Action::Fetch(1)]);
    pg.peer_disconnected(OsdId(1));
    assert_eq!(pg.unreadable(1, &corrupt()), Verdict::Drop);
    assert_eq!(pg.take_actions(), [], "the other may be gone, and then this copy is the last");
    pg.tick();
    let actions = pg.take_actions();
    let [Action::Send(_, Message { body: Body::Probe { ticket }, .. }), Action::Fetch(1), ..] = actions[..] else {
        panic!("{actions:?}")
    };
    pg.message(OsdId(1), Message { config: 1, body: told(ticket, Position::default(), false) });
    assert_eq!(pg.unreadable(1, &corrupt()), Verdict::Drop);
    assert_makes_way(&mut pg, &[1]);

    // It is gone: this copy leads on, and says what it cannot read.
    let mut pg = pair();
    pg.request(1, Request::Read(Reads::Objects));
    pg.peer_disconnected(OsdId(1));
    assert_eq!(pg.unreadable(1, &corrupt()), Verdict::Drop);
    pg.configure(configuration(2, &[0], &[], 1));
    pg.committed(1);
    pg.take_actions();
    pg.tick();
    assert_eq!(pg.take_actions()[0], Action::Fetch(1));
    assert_eq!(pg.unreadable(1, &corrupt()), Verdict::Send);
}

/// A record that was written so is the same everywhere: copies must not make way for each other for ever.
#[test]
fn what_makes_no_sense_after_everything_was_replaced_is_refused() {
    let position = Position { config: 1, seq: 3 };
    let nonsense = || Ok(Loaded::Fence(Some(Bytes::from_static(b"\xee?"))));
    let mut pg = peered(stored(1, 1, 3), 2, &[0, 1]);
    sessions(&mut pg);
    let ask = |pg: &mut Pg, token| {
        pg.request(token, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 5 });
        let (ticket, load) = asks_for_fence(pg);
        pg.loaded(ticket, load, nonsense());
    };
    ask(&mut pg, 1);
    assert_makes_way(&mut pg, &[1]);
    // The mon made another configuration instead: nothing was replaced yet.
    configure_and_peer(&mut pg, 3, &[0, 1], position);
    sessions(&mut pg);
    ask(&mut pg, 2);
    assert_makes_way(&mut pg, &[2]);
    replace(&mut pg, 4, position);
    configure_and_peer(&mut pg, 5, &[0, 1], position);
    sessions(&mut pg);
    ask(&mut pg, 3);
    assert_refused(&mut pg, 3, Reason::Corrupt);
    assert!(pg.status().active);
}
