//! Copies that are brought up to date.

use super::*;

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
fn r26_a_copy_that_cannot_tell_what_it_has_too_much_does_not_say_that_it_is_replaced() {
    let mut pg = member();
    pg.committed(1);
    pg.take_actions();
    let range = PageRange::Objects { after: None, through: None };
    let install = || {
        let part = Part { range: range.clone(), records: Vec::new(), objects: Vec::new() };
        Message { config: 4, body: Body::Install { ticket: 5, part } }
    };
    let begin = Body::Begin { position: Position { config: 4, seq: 9 } };
    pg.message(OsdId(0), Message { config: 4, body: begin });
    pg.take_actions();
    pg.committed(1);
    pg.message(OsdId(0), install());
    let ticket = page_asked(&mut pg).expect("its own objects");
    pg.page(ticket, None);
    assert_eq!(pg.take_actions(), [send(0, 4, Body::Refused { promised: 4 })]);
    pg.message(OsdId(0), install());
    let ticket = page_asked(&mut pg).expect("its own objects");
    let object = ObjectKey { ino: Ino(9), index: 3 };
    pg.page(ticket, Some(Page { range: range.clone(), digest: Bytes::new(), objects: vec![object], part: None }));
    let actions = pg.take_actions();
    let [Action::Commit(changes)] = &actions[..] else { panic!("{actions:?}") };
    assert!(changes.contains(&Change::Forget { object }));
}
