//! Copies that lost something, or are damaged.

use super::*;

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
    let told = Told { position: Position { config: 1, seq: 2 }, decided, incomplete: false, full: false };
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
        let told = Told { position, decided, incomplete: false, full: false };
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
