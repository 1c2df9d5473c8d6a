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
    bytes.extend([7; 8]);
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
        assert_eq!(damaged_at(&bytes, true), None);
        assert_eq!(damaged_at(&bytes, false), None);
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
            assert_eq!(damaged_at(&bytes, false), None, "{length}");
            assert_eq!(damaged_at(&bytes, true), Some(batches(9).concat().len()), "{length}");
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
            assert_eq!(damaged_at(&bytes.concat(), false), Some(before), "{at}");
        }
    }
}
