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
    assert_eq!(planned.changes, [Change::Write { object: OBJECT, offset: 6, data: Bytes::from_static(b"four") }]);
    assert_eq!(planned.header, Some(ObjectHeader { size: 10, ..Default::default() }));
    assert_eq!(planned.reply, Reply::Written { size: 10 });
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
