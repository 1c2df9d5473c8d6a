use loadgen::content::{Content, generate, generated, mix};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, length: u64, seed: u64 },
    Truncate(u64),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..200u64, 0..90u64, 0..3u64).prop_map(|(offset, length, seed)| Change::Write { offset, length, seed }),
        1 => (0..300u64).prop_map(Change::Truncate),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match *change {
        Change::Write { offset, length, seed } if length > 0 => {
            let (offset, end) = (offset as usize, (offset + length) as usize);
            bytes.resize(bytes.len().max(end), 0);
            generate(seed, offset as u64, &mut bytes[offset..end]);
        }
        Change::Write { .. } => {}
        Change::Truncate(size) => bytes.resize(size as usize, 0),
    }
}

proptest! {
    #[test]
    fn extents_hold_what_a_plain_vector_holds(changes in prop::collection::vec(change(), 1..40), at in 0..300u64, len in 0..120usize) {
        let (mut content, mut bytes) = (Content::default(), Vec::new());
        for change in &changes {
            apply(&mut bytes, change);
            match *change {
                Change::Write { offset, length, seed } => content.write(offset, length, seed),
                Change::Truncate(size) => content.truncate(size),
            }
            prop_assert_eq!(content.size(), bytes.len() as u64);
            let mut all = vec![1; bytes.len()];
            content.fill(0, &mut all);
            prop_assert_eq!(&all, &bytes);
            prop_assert_eq!(content.check(0, &bytes), None);
        }
        let mut part = vec![1; len];
        content.fill(at, &mut part);
        let mut expected = bytes.clone();
        expected.resize((at as usize + len).max(bytes.len()), 0);
        prop_assert_eq!(&part[..], &expected[at as usize..at as usize + len]);
    }

    #[test]
    fn a_changed_byte_is_found(size in 1..20_000usize, wrong in 0..20_000usize, seed: u64) {
        let wrong = wrong % size;
        let mut content = Content::default();
        content.write(0, size as u64, seed);
        let mut bytes = generated(seed, 0, size);
        bytes[wrong] ^= 0x40;
        let found = content.check(0, &bytes).unwrap();
        prop_assert_eq!(found.offset, wrong as u64);
        prop_assert_eq!(found.expected, bytes[wrong] ^ 0x40);
        prop_assert_eq!(found.got, bytes[wrong]);
    }

    #[test]
    fn pieces_are_cut_from_one_stream(seed: u64, offset in 0..1000u64, len in 0..100usize) {
        let whole = generated(seed, 0, 1200);
        let piece = generated(seed, offset, len);
        prop_assert_eq!(&piece[..], &whole[offset as usize..offset as usize + len]);
    }
}

#[test]
fn seeds_of_clients_files_and_versions_differ() {
    let mut seeds: Vec<u64> = (0..40).flat_map(|a| (0..40).map(move |b| mix(a, b))).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 1600);
}
