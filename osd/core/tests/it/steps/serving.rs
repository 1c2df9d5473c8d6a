//! What a primary answers, and when.

use super::*;

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
