use super::*;

fn item(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![ITEM, 0, 0];
    bytes.extend(1u64.to_le_bytes());
    bytes.extend((key.len() as u16).to_le_bytes());
    bytes.extend((value.len() as u32).to_le_bytes());
    bytes.extend((value.len() as u32).to_le_bytes());
    bytes.extend(key);
    bytes.extend(value);
    bytes
}

fn one(number: u64, items: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![START];
    bytes.extend((items.len() as u32).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(items.concat());
    bytes.push(END);
    bytes.extend(xxh3_64(&items.concat()).to_le_bytes());
    bytes.extend(MAGIC);
    bytes
}

fn batches(count: u64) -> Vec<Vec<u8>> {
    let clear = [vec![CLEAR], 3u64.to_le_bytes().to_vec()].concat();
    let items = [item(b"key", b"\x01value"), item(b"", b""), clear];
    (1..=count).map(|number| one(number, &items[..(number % 4) as usize])).collect()
}

#[test]
fn whole_batches_and_zeros_are_fine() {
    for zeros in [0, 1, 5000, 100_000] {
        let bytes = [batches(9).concat(), vec![0; zeros]].concat();
        assert_eq!(look_at(&bytes, true), Found::Whole);
        assert_eq!(look_at(&bytes, false), Found::Whole);
    }
}

/// What was being written may end anywhere, also with an older end of its own inside a value.
#[test]
fn a_torn_last_batch_is_cut_off_but_not_in_a_sealed_journal() {
    let inner = one(1, &[item(b"k", b"v")]);
    let last = one(10, &[item(b"k", &inner), item(b"l", b"w")]);
    for length in 1..last.len() {
        for zeros in [0, 5000] {
            let bytes = [batches(9).concat(), last[..length].to_vec(), vec![0; zeros]].concat();
            assert_eq!(look_at(&bytes, false), Found::Torn(batches(9).concat().len()), "{length}");
            assert_eq!(look_at(&bytes, true), Found::Damaged(batches(9).concat().len()), "{length}");
        }
    }
}

#[test]
fn i1_damage_before_a_later_batch_is_noticed() {
    let all = batches(9);
    for at in 0..8 {
        let before = all[..at].concat().len();
        for bytes in [
            [all[..at].concat(), vec![0; all[at].len()], all[at + 1..].concat()],
            [all[..at].concat(), vec![0xee; all[at].len() / 2], all[at + 1..].concat()],
            [all[..at].concat(), all[at][1..].to_vec(), all[at + 1..].concat()],
        ] {
            assert_eq!(look_at(&bytes.concat(), false), Found::Damaged(before), "{at}");
        }
    }
}

/// A power cut keeps any of the sectors from the disk, also in the middle: structure alone does not always show it.
#[test]
fn a_last_batch_that_lacks_sectors_is_cut_off_but_not_one_that_rotted() {
    let before = batches(9).concat();
    let value: Vec<u8> = (0..5000u32).map(|number| (number % 251 + 1) as u8).collect();
    let all = [before.clone(), one(10, &[item(b"k", &value), item(b"l", &value)]), vec![0; 9000]].concat();
    assert_eq!(look_at(&all, false), Found::Whole);
    let end = all.iter().rposition(|byte| *byte != 0).unwrap();
    let sectors = before.len().next_multiple_of(SECTOR)..end;
    for at in sectors.step_by(SECTOR).filter(|at| at + SECTOR <= end) {
        let mut torn = all.clone();
        torn[at..at + SECTOR].fill(0);
        assert_eq!(look_at(&torn, false), Found::Torn(before.len()), "{at}");
        let sealed = look_at(&torn, true);
        assert!(matches!(sealed, Found::Whole | Found::Damaged(_)), "{sealed:?} is for fjall to refuse");
        let mut later = torn;
        later.truncate(end + 1);
        later.extend(one(11, &[item(b"k", b"v")]));
        assert!(!matches!(look_at(&later, false), Found::Torn(_)), "more would be lost");
        // The next one had begun, so this one had been synced. Where its structure is gone that does not show.
        let mut begun = later[..end + 1].to_vec();
        begun.extend(&one(11, &[item(b"k", b"v")])[..9]);
        let shows = batch(&begun[before.len()..]).is_ok();
        assert!(!shows || !matches!(look_at(&begun, false), Found::Torn(_)), "it was acknowledged: {at}");
        let mut rotten = all.clone();
        rotten[at] ^= 1;
        assert!(!matches!(look_at(&rotten, false), Found::Torn(_)), "it may have been acknowledged: {at}");
    }
}
