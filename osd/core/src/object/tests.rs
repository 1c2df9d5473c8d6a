use bytes::Bytes;
use pando_proto::{ClientId, Ino};

use super::*;
use crate::ObjectKey;

const OBJECT: ObjectKey = ObjectKey { ino: Ino(7), index: 1 };

fn mutation(generation: u64, kind: MutationKind) -> Mutation {
    Mutation { session: ClientId(1), sequence: 1, low_water: 1, generation, object: OBJECT, kind }
}

fn write(generation: u64, offset: u64) -> Mutation {
    mutation(generation, MutationKind::Write { offset, data: Bytes::from_static(b"four") })
}

#[test]
fn a_write_makes_and_grows_an_object() {
    let planned = plan(write(1, 6), None, 5).unwrap();
    let mark = Change::SetHeader { object: OBJECT, generation: 1, deleted: false, sessions_before: 0 };
    let bytes = Change::Write { object: OBJECT, offset: 6, data: Bytes::from_static(b"four") };
    assert_eq!(planned.changes, [mark, bytes.clone()]);
    assert_eq!(planned.header, Some(ObjectHeader { size: 10, generation: 1, ..Default::default() }));
    assert_eq!(planned.reply, Reply::Written { size: 10 });
    assert_eq!(plan(write(0, 6), None, 5).unwrap().changes, [bytes], "generation 0 is what an object is made with");
}

#[test]
fn r22_a_delete_that_comes_late_spares_a_new_object() {
    let new = plan(write(7, 0), None, 5).unwrap();
    for kind in [MutationKind::Delete, MutationKind::Truncate { size: 0 }] {
        let late = plan(mutation(6, kind), new.header, 5).err().unwrap();
        assert_eq!(late.reason, Reason::StaleGeneration);
    }
}

#[test]
fn r22_a_write_to_an_object_that_lives_keeps_no_cut_off() {
    let old = Some(ObjectHeader { size: 9, generation: 5, ..Default::default() });
    let written = plan(write(7, 0), old, 5).unwrap();
    assert_eq!(written.header, old, "the generation is that of its making, or of the last cut");
    assert!(plan(mutation(6, MutationKind::Truncate { size: 4 }), written.header, 5).is_ok());
}

#[test]
fn r22_a_cut_that_was_done_spares_what_was_written_behind_it_since() {
    let old = Some(ObjectHeader { size: 9, generation: 5, ..Default::default() });
    let cut = || mutation(6, MutationKind::Truncate { size: 4 });
    let done = plan(cut(), old, 5).unwrap();
    let written = plan(write(7, 4), done.header, 5).unwrap();
    let again = plan(cut(), written.header, 5).unwrap();
    assert_eq!((again.changes, again.header.unwrap().size, again.reply), (vec![], 8, Reply::Trimmed));
    assert_eq!(plan(mutation(8, MutationKind::Truncate { size: 4 }), again.header, 5).unwrap().header.unwrap().size, 4);
}

#[test]
fn r22_a_late_write_after_a_purge_is_refused() {
    let gone =
        plan(mutation(3, MutationKind::Delete), Some(ObjectHeader { size: 9, ..Default::default() }), 5).unwrap();
    let header = ObjectHeader { size: 0, generation: 3, deleted: true, sessions_before: 5 };
    assert_eq!(gone.header, Some(header));
    assert_eq!(plan(write(2, 0), gone.header, 6).err().unwrap().reason, Reason::StaleGeneration);
    let again = plan(write(3, 0), gone.header, 6).unwrap();
    assert_eq!(again.header, Some(ObjectHeader { size: 4, generation: 3, ..Default::default() }));
    assert_eq!(again.changes.len(), 2);
}

#[test]
fn truncating_an_absent_object_remembers_the_generation() {
    let planned = plan(mutation(2, MutationKind::Truncate { size: 4 }), None, 9).unwrap();
    let header = ObjectHeader { size: 0, generation: 2, deleted: true, sessions_before: 9 };
    assert_eq!(planned.header, Some(header));
    assert_eq!(planned.reply, Reply::Trimmed);
}

#[test]
fn truncate_cuts_and_never_grows() {
    let old = Some(ObjectHeader { size: 100, ..Default::default() });
    let cut = plan(mutation(2, MutationKind::Truncate { size: 10 }), old, 9).unwrap();
    assert_eq!(cut.header.unwrap().size, 10);
    assert_eq!(cut.changes[0], Change::Truncate { object: OBJECT, size: 10 });
    let kept = plan(mutation(2, MutationKind::Truncate { size: 200 }), old, 9).unwrap();
    assert_eq!((kept.header.unwrap().size, kept.changes.len()), (100, 1));
}

#[test]
fn zeroing_stays_within_the_object() {
    let old = Some(ObjectHeader { size: 100, ..Default::default() });
    let zero = |offset, length| plan(mutation(0, MutationKind::Zero { offset, length }), old, 9).unwrap().changes;
    assert_eq!(zero(90, u64::MAX), [Change::Zero { object: OBJECT, offset: 90, length: 10 }]);
    assert_eq!(zero(100, 5), []);
    assert_eq!(plan(mutation(0, MutationKind::Zero { offset: 0, length: 5 }), None, 9).unwrap().header, None);
}
