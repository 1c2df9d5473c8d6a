//! Bodies, objects, and the ways between them (R22, R23, R24).

use bytes::Bytes;
use pando_mds_core::Namespace;
use pando_mds_core::api::{Context, FollowUp, Outcome};
use pando_mds_core::records::Key;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Ino, Reason};

use crate::rig::*;

fn placement(rig: &mut Rig, path: &str) -> Placement {
    match rig.ok(stat(path)) {
        Reply::Stat(reply) => reply.placement.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn content(rig: &mut Rig, path: &str) -> Vec<u8> {
    match rig.ok(read_file(path)) {
        Reply::ReadFile(reply) => rig.content(&reply),
        other => panic!("{other:?}"),
    }
}

/// A file of 200 bytes in objects, open for writing as handle 1.
fn large() -> (Rig, Ino) {
    let mut rig = Rig::new(config());
    rig.open("f", 1, R | W | C);
    rig.write_at(ClientId(1), 1, 0, &[7; 200]).unwrap();
    let ino = Ino(rig.stat("f").ino);
    (rig, ino)
}

#[test]
fn data_up_to_the_limit_is_inline_and_more_is_refused() {
    let mut rig = Rig::new(config());
    rig.write("f", &[1; 64]);
    assert_eq!(placement(&mut rig, "f").home(), DataHome::Inline);
    let error = rig.run(write_file("f", &[1; 65])).unwrap_err();
    assert_eq!((error.reason, error.errno), (Reason::TooLargeForInline, Errno::EFBIG));
    assert_eq!(rig.read("f"), [1; 64], "nothing happened");
    rig.ns.set_inline_limit(10);
    assert_eq!(rig.read("f"), [1; 64], "a lower limit moves nothing by itself");
    rig.ok(resize("f", 60));
    assert_eq!(placement(&mut rig, "f").home(), DataHome::Inline);
    rig.open("f", 1, W);
    rig.write_at(ClientId(1), 1, 59, b"x").unwrap();
    assert_eq!(placement(&mut rig, "f").home(), DataHome::Inline);
    rig.write_at(ClientId(1), 1, 60, b"x").unwrap();
    assert_eq!(placement(&mut rig, "f").home(), DataHome::Objects, "growing beyond it does");
}

#[test]
fn a_file_that_outgrows_its_body_moves_once_and_whole() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"start").ino);
    let before = placement(&mut rig, "f");
    rig.open("f", 1, R | W);
    rig.write_at(ClientId(1), 1, 100, b"far").unwrap();
    let after = placement(&mut rig, "f");
    assert_eq!((after.home(), after.object_size), (DataHome::Objects, OBJECT_SIZE));
    assert!(after.generation > before.generation && after.inline_version > before.inline_version, "R24");
    let mut expected = b"start".to_vec();
    expected.resize(100, 0);
    expected.extend_from_slice(b"far");
    assert_eq!(content(&mut rig, "f"), expected);
    rig.flush();
    assert!(!rig.store.contains_key(&Key::Body(ino).encode()), "never two homes");
    assert!(!rig.store.contains_key(&Key::Purge(ino).encode()));
}

#[test]
fn an_empty_file_goes_to_objects_without_a_move() {
    let mut rig = Rig::new(config());
    let hint =
        OpenRequest { target: at("f"), handle: 1, flags: W | C, mode: 0o644, size_hint: 65, ..Default::default() };
    let Reply::Open(reply) = rig.ok(Op::Open(hint)) else { panic!() };
    assert_eq!(reply.placement.unwrap().home(), DataHome::Objects);
    rig.write("g", b"");
    rig.open("g", 2, W);
    let Reply::GrantSize(grant) =
        rig.ok(Op::GrantSize(GrantSizeRequest { handle: 2, size: 500, ..Default::default() }))
    else {
        panic!()
    };
    let placement = grant.placement.unwrap();
    assert_eq!((placement.home(), placement.max_size), (DataHome::Objects, 500), "R23");
    rig.open("h", 3, W | C);
    let Reply::GrantSize(small) = rig.ok(Op::GrantSize(GrantSizeRequest { handle: 3, size: 5, ..Default::default() }))
    else {
        panic!()
    };
    assert_eq!(small.placement.unwrap().home(), DataHome::Inline, "what fits inline needs no grant");
}

#[test]
fn during_a_spill_reads_go_on_and_writes_wait() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"body").ino);
    rig.open("f", 1, R | W);
    let ctx = Context { now: 5, client: ClientId(1), ..Context::default() };
    let (intent, body) = rig.ns.spill_intent(ino, 300, &ctx).unwrap();
    assert_eq!(body, "body");
    rig.commit(intent);
    rig.flush();
    let record = rig.inode(ino).unwrap();
    assert_eq!((record.spill_generation, record.max_size), (record.generation + 1, 300));
    assert!(rig.ns.is_blocked(ino));
    assert!(rig.ns.spill_intent(ino, 300, &ctx).is_err(), "one at a time");
    assert_eq!(rig.read("f"), b"body");
    for op in [write_file("f", b"x"), resize("f", 0), unlink("f")] {
        let outcome = if let Op::Unlink(_) = op {
            // Open: it becomes an orphan, which the end of the spill respects.
            continue;
        } else {
            rig.ns.apply(&Operation { op: Some(op) }, &ctx)
        };
        assert!(matches!(outcome, Outcome::Wait(waits) if waits == ino), "{outcome:?}");
    }
    rig.ok(Op::SetAttr(SetAttrRequest { target: at("f"), mode: Some(0o600), ..Default::default() }));
    rig.put_objects(ino, record.spill_generation, 0, b"body");
    let finish = rig.ns.spill_finish(ino).unwrap();
    rig.commit(finish);
    assert_eq!(content(&mut rig, "f"), b"body");
    assert_eq!(rig.stat("f").mode, 0o600, "what changed meanwhile is kept");
    assert!(rig.ns.spill_finish(ino).is_err());
}

#[test]
fn a_spill_that_nobody_ended_is_purged() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"body").ino);
    let ctx = Context { now: 5, client: ClientId(1), ..Context::default() };
    let (intent, _) = rig.ns.spill_intent(ino, 300, &ctx).unwrap();
    rig.commit(intent);
    rig.flush();
    let generation = rig.inode(ino).unwrap().spill_generation;
    rig.put_objects(ino, generation, 0, b"bo");
    rig.restart(config());
    rig.flush();
    assert!(rig.objects.is_empty(), "R24: a takeover purges what the spill wrote");
    assert!(!rig.store.contains_key(&Key::Purge(ino).encode()));
    assert_eq!(rig.read("f"), b"body");
    let placement = placement(&mut rig, "f");
    assert!(placement.home() == DataHome::Inline && placement.generation > generation, "{placement:?}");
    rig.open("f", 1, W);
    rig.write_at(ClientId(1), 1, 90, b"x").unwrap();
    rig.flush();
    assert_eq!(content(&mut rig, "f")[..4], *b"body");
}

#[test]
fn a_spill_that_failed_leaves_the_body_in_place() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"body").ino);
    let ctx = Context { now: 5, client: ClientId(1), ..Context::default() };
    let (intent, _) = rig.ns.spill_intent(ino, 300, &ctx).unwrap();
    rig.commit(intent);
    rig.flush();
    let generation = rig.inode(ino).unwrap().spill_generation;
    rig.put_objects(ino, generation, 0, b"bo");
    let abort = rig.ns.spill_abort(ino).unwrap();
    assert!(matches!(abort.follow_up[..], [FollowUp::Purge(..)]));
    rig.commit(abort);
    rig.write("f", b"written");
    rig.flush();
    assert!(!rig.ns.is_blocked(ino) && rig.objects.is_empty());
    assert_eq!(rig.read("f"), b"written");
}

#[test]
fn truncate_down_cuts_objects_before_it_is_answered() {
    let (mut rig, ino) = large();
    let before = placement(&mut rig, "f");
    rig.ok(resize("f", 50));
    let after = placement(&mut rig, "f");
    assert!(after.generation > before.generation && after.truncate_seq > before.truncate_seq, "R22");
    let pending = rig.pending.back().unwrap();
    assert!(pending.writes.iter().any(|write| write.key == Key::Purge(ino) && write.value.is_some()));
    assert!(rig.ns.is_blocked(ino));
    let outcome = rig
        .ns
        .apply(&Operation { op: Some(read_file("f")) }, &Context { now: 1, client: ClientId(1), ..Context::default() });
    assert!(matches!(outcome, Outcome::Wait(waits) if waits == ino));
    assert_eq!(content(&mut rig, "f"), [7; 50]);
    assert_eq!(rig.objects.file(ino).1.len(), 50);
    // R23: a report from before is void, and so is its generation.
    let report = SizeReport { size: 200, truncate_seq: before.truncate_seq, mtime: 9 };
    let Reply::ReportSize(reply) =
        rig.ok(Op::ReportSize(ReportSizeRequest { handle: 1, report: Some(report), ..Default::default() }))
    else {
        panic!()
    };
    assert_eq!(reply.attr.unwrap().size, 50);
    rig.ok(resize("f", 80));
    let mut expected = vec![7; 50];
    expected.resize(80, 0);
    assert_eq!(content(&mut rig, "f"), expected, "zeros, not what was cut");
}

#[test]
fn truncate_by_a_few_bytes_cuts_them_too() {
    let (mut rig, _) = large();
    rig.ok(resize("f", 197));
    rig.ok(resize("f", 200));
    assert_eq!(content(&mut rig, "f")[195..], [7, 7, 0, 0, 0]);
}

#[test]
fn truncate_to_nothing_brings_a_file_home() {
    let (mut rig, ino) = large();
    rig.ok(resize("f", 0));
    assert_eq!(placement(&mut rig, "f").home(), DataHome::Inline);
    let pending = rig.pending.back().unwrap();
    let purge = pending.writes.iter().find(|write| write.key == Key::Purge(ino)).unwrap();
    let record: PurgeRecord = prost::Message::decode(&purge.value.as_ref().unwrap()[1..]).unwrap();
    assert!(placement(&mut rig, "f").generation > record.generation, "R22: new objects are above the deletes");
    // The next content does not wait for the purge, and survives it.
    rig.write("f", b"new");
    assert!(rig.ns.is_blocked(ino));
    assert_eq!(rig.read("f"), b"new");
    rig.flush();
    assert!(rig.objects.is_empty() && !rig.ns.is_blocked(ino));
    assert_eq!(rig.read("f"), b"new");
}

#[test]
fn objects_go_with_the_last_reference() {
    let (mut rig, ino) = large();
    rig.ok(unlink("f"));
    rig.flush();
    assert_eq!(rig.objects.inos().len(), 1, "still open");
    rig.ok(close(1));
    let last = rig.pending.back().unwrap();
    let purge = last.writes.iter().find(|write| write.key == Key::Purge(ino)).unwrap();
    let record: PurgeRecord = prost::Message::decode(&purge.value.as_ref().unwrap()[1..]).unwrap();
    assert_eq!((record.from, record.max_size, record.object_size), (0, 200, OBJECT_SIZE));
    assert!(last.writes.iter().any(|write| write.key == Key::Inode(ino) && write.value.is_none()), "R23: in one batch");
    rig.flush();
    assert!(rig.objects.is_empty() && rig.store.keys().all(|key| ino_of(key) != ino));
}

#[test]
fn what_a_dead_writer_left_beyond_the_size_does_not_show() {
    let (mut rig, ino) = large();
    // Granted and written, never reported: the writer dies.
    rig.ok(Op::GrantSize(GrantSizeRequest { handle: 1, size: 300, ..Default::default() }));
    rig.flush();
    let generation = placement(&mut rig, "f").generation;
    rig.put_objects(ino, generation, 200, &[9; 100]);
    for gone in rig.ns.session_gone(ClientId(1)) {
        rig.reap(gone);
    }
    // Another extends the file beyond.
    rig.run_as(ClientId(2), open("f", 1, W)).unwrap();
    rig.write_at(ClientId(2), 1, 290, b"x").unwrap();
    let mut expected = vec![7; 200];
    expected.resize(290, 0);
    expected.push(b'x');
    assert_eq!(content(&mut rig, "f"), expected, "R23");
}

#[test]
fn two_writers_do_not_cut_each_other() {
    let (mut rig, ino) = large();
    rig.ok(Op::GrantSize(GrantSizeRequest { handle: 1, size: 300, ..Default::default() }));
    rig.flush();
    let first = placement(&mut rig, "f");
    rig.put_objects(ino, first.generation, 200, &[8; 100]);
    rig.run_as(ClientId(2), open("f", 1, W)).unwrap();
    rig.write_at(ClientId(2), 1, 300, &[9; 10]).unwrap();
    assert_eq!(placement(&mut rig, "f").truncate_seq, first.truncate_seq);
    let report = SizeReport { size: 300, truncate_seq: first.truncate_seq, mtime: 3 };
    rig.ok(Op::Close(CloseRequest { handle: 1, report: Some(report), ..Default::default() }));
    let bytes = content(&mut rig, "f");
    assert_eq!((bytes.len(), &bytes[200..300], &bytes[300..]), (310, &[8; 100][..], &[9; 10][..]));
}

#[test]
fn appends_to_objects_get_ranges_of_their_own() {
    let (mut rig, _) = large();
    rig.run_as(ClientId(2), open("f", 1, W)).unwrap();
    let append = || {
        Op::Write(WriteRequest {
            handle: 1,
            offset: 0,
            data: Bytes::from_static(&[1; 10]),
            append: true,
            ..Default::default()
        })
    };
    let Ok(Reply::Write(one)) = rig.run_as(ClientId(1), append()) else { panic!() };
    let Ok(Reply::Write(two)) = rig.run_as(ClientId(2), append()) else { panic!() };
    assert_eq!((one.written, one.offset, two.offset), (false, 200, 210));
    assert!(two.placement.unwrap().max_size >= 220);
}

#[test]
fn reports_beyond_what_was_granted_are_refused() {
    let (mut rig, _) = large();
    let seq = placement(&mut rig, "f").truncate_seq;
    for report in [
        SizeReport { size: 201, truncate_seq: seq, mtime: 0 },
        SizeReport { size: u64::MAX, truncate_seq: seq, mtime: 0 },
        SizeReport { size: 1, truncate_seq: seq + 1, mtime: 0 },
    ] {
        let op = Op::ReportSize(ReportSizeRequest { handle: 1, report: Some(report), ..Default::default() });
        assert_eq!(rig.errno(op), Errno::EINVAL);
    }
    assert_eq!(
        rig.errno(Op::GrantSize(GrantSizeRequest { handle: 1, size: u64::MAX, ..Default::default() })),
        Errno::EFBIG
    );
    assert_eq!(rig.errno(resize("f", u64::MAX)), Errno::EFBIG);
    assert_eq!(rig.errno(resize("", 1)), Errno::EISDIR);
}

#[test]
fn a_cut_that_a_restart_interrupts_is_done_again() {
    let (mut rig, ino) = large();
    rig.ok(resize("f", 50));
    // Durable, but the purge did not happen.
    let pending = rig.pending.pop_front().unwrap();
    for write in &pending.writes {
        match &write.value {
            Some(value) => rig.store.insert(write.key.encode(), value.clone()),
            None => rig.store.remove(&write.key.encode()),
        };
    }
    rig.ns = Namespace::new(config());
    let value = rig.store[&Key::Purge(ino).encode()].clone();
    let record: PurgeRecord = prost::Message::decode(&value[1..]).unwrap();
    assert_eq!(rig.ns.recover(ino, &record), FollowUp::Purge(ino, record));
    let outcome = rig
        .ns
        .apply(&Operation { op: Some(stat("f")) }, &Context { now: 1, client: ClientId(1), ..Context::default() });
    assert!(matches!(outcome, Outcome::Missing(_)));
    assert!(rig.ns.is_blocked(ino));
}

/// Runs `op` as its waiters would find it: blocked on `ino`.
fn waits(rig: &mut Rig, op: Op, ino: Ino) {
    let operation = Operation { op: Some(op) };
    loop {
        match rig.ns.apply(&operation, &Context { now: 1, client: ClientId(1), ..Context::default() }) {
            Outcome::Missing(fetches) => {
                for fetch in &fetches {
                    let token = rig.ns.begin_fetch(fetch);
                    let fetched = read_store(&rig.store, rig.page, fetch);
                    rig.ns.install(token, fetched).unwrap();
                }
            }
            Outcome::Wait(waits) if waits == ino => return,
            other => panic!("{operation:?}: {other:?}"),
        }
    }
}

fn grant(handle: u64, size: u64) -> Op {
    Op::GrantSize(GrantSizeRequest { handle, size, ..Default::default() })
}

fn append(handle: u64) -> Op {
    Op::Write(WriteRequest {
        handle,
        offset: 0,
        data: Bytes::from_static(&[1; 10]),
        append: true,
        ..Default::default()
    })
}

fn reclaim(ino: Ino, handle: u64) -> Op {
    Op::Reclaim(ReclaimRequest { handles: vec![ReclaimedHandle { handle, ino: ino.0, flags: R | W }] })
}

#[test]
fn new_objects_wait_for_the_purge_of_the_old_ones() {
    for restart in [false, true] {
        let (mut rig, ino) = large();
        rig.late_purges = true;
        rig.ok(resize("f", 0));
        rig.flush();
        assert_eq!(rig.objects.file(ino).1, [7; 200], "the purge is due");
        if restart {
            rig.restart(config());
            rig.ok(reclaim(ino, 1));
        }
        // R22: the delete would take what is written, and old bytes would show in the holes.
        waits(&mut rig, grant(1, 300), ino);
        let far = WriteRequest {
            handle: 1,
            offset: 100,
            data: Bytes::from_static(b"far"),
            append: false,
            ..Default::default()
        };
        waits(&mut rig, Op::Write(far), ino);
        waits(&mut rig, resize("f", 100), ino);
        rig.write_at(ClientId(1), 1, 150, &[8; 10]).unwrap();
        let mut expected = vec![0; 150];
        expected.extend_from_slice(&[8; 10]);
        assert_eq!(content(&mut rig, "f"), expected);
        rig.purge();
        assert_eq!(content(&mut rig, "f"), expected);
    }
}

#[test]
fn a_delete_that_comes_late_spares_what_was_written_since() {
    let (mut rig, ino) = large();
    for size in [0, 50] {
        rig.late_purges = true;
        rig.ok(resize("f", size));
        rig.flush();
        let purge = rig.purges[0];
        rig.write_at(ClientId(1), 1, 64, &[9; 100]).unwrap();
        let before = content(&mut rig, "f");
        // An owner of before has sent it as well.
        rig.purge_one(purge.0, &PurgeRecord { from: 64, ..purge.1 });
        assert_eq!((purge.0, content(&mut rig, "f")), (ino, before), "R22");
        rig.late_purges = false;
        rig.flush();
    }
}

#[test]
fn what_a_dead_writer_left_in_an_empty_file_does_not_show() {
    for extends in [false, true] {
        let mut rig = Rig::new(config());
        rig.late_purges = true;
        let hint =
            OpenRequest { target: at("f"), handle: 1, flags: W | C, mode: 0o644, size_hint: 300, ..Default::default() };
        let Reply::Open(reply) = rig.ok(Op::Open(hint)) else { panic!() };
        let ino = Ino(reply.attr.unwrap().ino);
        rig.ok(grant(1, 300));
        rig.flush();
        let generation = placement(&mut rig, "f").generation;
        rig.put_objects(ino, generation, 0, &[9; 300]);
        for gone in rig.ns.session_gone(ClientId(1)) {
            rig.reap(gone);
        }
        let mut expected = vec![0; 290];
        if extends {
            rig.ok(resize("f", 290));
        } else {
            rig.run_as(ClientId(2), open("f", 1, W)).unwrap();
            rig.write_at(ClientId(2), 1, 290, b"x").unwrap();
            expected.push(b'x');
        }
        assert_eq!(content(&mut rig, "f"), expected, "R23");
        rig.purge();
        rig.flush();
        assert_eq!(content(&mut rig, "f"), expected);
    }
}

#[test]
fn a_cut_is_never_in_the_batch_of_the_grant_after_it() {
    let (mut rig, ino) = large();
    rig.ok(grant(1, 300));
    rig.flush();
    for gone in rig.ns.session_gone(ClientId(1)) {
        rig.reap(gone);
    }
    rig.run_as(ClientId(1), open("f", 1, W)).unwrap();
    // After a restart the answer to the grant is found in `q/`, and given before the purge is done again.
    let operation = Operation { op: Some(grant(1, 400)) };
    let outcome = rig.ns.apply(&operation, &Context { now: 1, client: ClientId(1), ..Context::default() });
    let Outcome::CutFirst(cut, change) = outcome else { panic!("{outcome:?}") };
    assert_eq!(cut, ino);
    assert!(matches!(change.follow_up[..], [FollowUp::Purge(..)]));
    rig.late_purges = true;
    rig.commit(change);
    rig.flush();
    let before = rig.inode(ino).unwrap();
    assert_eq!((before.size, before.max_size), (200, 200));
    rig.restart(config());
    rig.ok(reclaim(ino, 1));
    waits(&mut rig, grant(1, 400), ino);
    rig.ok(grant(1, 400));
    assert_eq!(placement(&mut rig, "f").max_size, 400);
}

#[test]
fn after_a_restart_no_range_is_given_to_two_appends() {
    for back in [false, true] {
        let (mut rig, ino) = large();
        rig.run_as(ClientId(2), open("f", 1, W)).unwrap();
        let Ok(Reply::Write(first)) = rig.run_as(ClientId(1), append(1)) else { panic!() };
        rig.flush();
        assert_eq!(first.offset, 200);
        let told = first.placement.unwrap();
        rig.restart(config());
        rig.ns.begin_grace();
        if back {
            rig.run_as(ClientId(1), reclaim(ino, 1)).unwrap();
        }
        rig.run_as(ClientId(2), reclaim(ino, 1)).unwrap();
        let Ok(Reply::Write(second)) = rig.run_as(ClientId(2), append(1)) else { panic!() };
        rig.flush();
        let placement = second.placement.unwrap();
        assert!(placement.truncate_seq > told.truncate_seq, "R23: what was reserved is void");
        rig.put_objects(ino, placement.generation, second.offset, &[2; 10]);
        // The first goes on as it was told: refused, or void; it appends again, elsewhere.
        rig.run_as(ClientId(1), reclaim(ino, 1)).unwrap();
        rig.try_put_objects(ino, told.generation, first.offset, &[1; 10]);
        let report = SizeReport { size: 210, truncate_seq: told.truncate_seq, mtime: 3 };
        let report = Op::ReportSize(ReportSizeRequest { handle: 1, report: Some(report), ..Default::default() });
        let Ok(Reply::ReportSize(void)) = rig.run_as(ClientId(1), report) else { panic!() };
        assert_eq!(void.attr.unwrap().size, 200);
        let Ok(Reply::Write(again)) = rig.run_as(ClientId(1), append(1)) else { panic!() };
        assert_eq!((second.offset, again.offset), (200, 210));
        assert_eq!(rig.objects.file(ino).1[200..210], [2; 10], "R22");
    }
}

#[test]
fn a_size_that_stays_voids_no_append() {
    let (mut rig, _) = large();
    let Reply::Write(one) = rig.ok(append(1)) else { panic!() };
    rig.ok(resize("f", 200));
    let Reply::Write(two) = rig.ok(append(1)) else { panic!() };
    assert_eq!((one.offset, two.offset), (200, 210));
}

#[test]
fn a_file_truncated_to_objects_shows_none_of_the_old_ones() {
    let (mut rig, ino) = large();
    rig.late_purges = true;
    let open = OpenRequest { target: at("f"), handle: 2, flags: W | T, size_hint: 300, ..Default::default() };
    let Reply::Open(reply) = rig.ok(Op::Open(open)) else { panic!() };
    assert_eq!(reply.placement.unwrap().home(), DataHome::Objects);
    rig.flush();
    waits(&mut rig, resize("f", 100), ino);
    waits(&mut rig, grant(2, 300), ino);
    rig.ok(resize("f", 100));
    assert_eq!(content(&mut rig, "f"), [0; 100]);
}
