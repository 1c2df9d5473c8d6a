use futures_util::FutureExt as _;

use super::*;

fn used(meta_bytes: u64) -> CacheUsage {
    CacheUsage { meta_bytes, ..CacheUsage::default() }
}

#[test]
fn the_budget_holds_for_all_together() {
    let (memory, usage) = Memory::new(100, Arc::default());
    let (a, b) = (SubtreeId(1), SubtreeId(2));
    assert_eq!(memory.report(a, used(90)), 100, "alone it may have all");
    assert_eq!(memory.report(b, used(5)), 10);
    assert_eq!(usage.borrow().meta_bytes, 95);
    // Over: who is below an even share keeps what it has, the other gives way.
    assert_eq!(memory.report(b, used(30)), 50);
    assert_eq!(memory.report(a, used(90)), 70);
    assert_eq!(memory.report(a, used(70)), 70);
    memory.forget(a);
    assert_eq!(memory.report(b, used(30)), 100);
    assert_eq!(usage.borrow().meta_bytes, 30);
}

#[test]
fn i8_copies_that_are_not_adopted_yet_take_their_part() {
    let imports = Arc::new(Imported::default());
    let (memory, _) = Memory::new(100, Arc::clone(&imports));
    assert_eq!(memory.report(SubtreeId(1), used(90)), 100);
    imports.set(30);
    assert_eq!(memory.report(SubtreeId(1), used(90)), 70);
    assert_eq!(memory.report(SubtreeId(2), used(0)), 35);
    assert_eq!(memory.report(SubtreeId(1), used(90)), 70);
}

#[test]
fn i8_a_copy_that_comes_presses_caches_that_are_idle() {
    let imports = Arc::new(Imported::default());
    let (memory, _) = Memory::new(100, Arc::clone(&imports));
    memory.report(SubtreeId(1), used(90));
    imports.set(10);
    assert!(memory.pressed().now_or_never().is_none(), "there is room");
    imports.set(11);
    assert!(memory.pressed().now_or_never().is_some());
    imports.set(5);
    assert!(memory.pressed().now_or_never().is_none(), "it became less");
}

#[test]
fn i8_pins_count_for_all_subtrees_together() {
    let (memory, _) = Memory::new(100, Arc::default());
    let pinned = |pinned_bytes| CacheUsage { pinned_bytes, ..CacheUsage::default() };
    memory.report(SubtreeId(1), pinned(20));
    memory.report(SubtreeId(2), pinned(10));
    assert!(!memory.is_pinned(SubtreeId(2), 30));
    assert!(memory.is_pinned(SubtreeId(2), 31), "20 of the other");
    memory.report(SubtreeId(1), pinned(60));
    assert!(!memory.is_pinned(SubtreeId(2), 25), "who has less than an even share goes on");
    assert!(memory.is_pinned(SubtreeId(2), 26));
    memory.forget(SubtreeId(1));
    assert!(!memory.is_pinned(SubtreeId(2), 31));
}

#[test]
fn i8_what_operations_hold_is_bounded_for_all_subtrees_of_a_rank() {
    let (memory, _) = Memory::new(100, Arc::default());
    let mut shares: Vec<Share> = (0..256).map(|_| memory.share()).collect();
    let (mut total, each) = (0, 1 << 20);
    // Each takes as long as it may.
    for share in &mut shares {
        let mut own = 0;
        while share.has_room(Kind::PendingBytes, own) {
            own += each;
            share.tell([0, 0, own, 0]);
        }
        total += own;
    }
    assert!(total <= (2 * 32 + 256) * each, "{total}");
    assert!(!shares[0].has_room(Kind::PendingBytes, 31 << 20), "the first has most of it");
    assert!(shares[255].has_room(Kind::PendingBytes, 100 << 10), "who has little goes on");
    assert!(shares[0].has_room(Kind::ReplyBytes, 0) && shares[0].has_room(Kind::Jobs, 0), "each kind by itself");
    // What a subtree held is free when it has gone.
    assert!(!shares[255].has_room(Kind::PendingBytes, 2 << 20));
    shares.drain(..240);
    assert!(shares[15].has_room(Kind::PendingBytes, 2 << 20));
    drop(shares);
    assert!(memory.share().has_room(Kind::PendingBytes, 32 << 20));
    assert!(!memory.share().has_room(Kind::PendingBytes, (32 << 20) + 1));
}
