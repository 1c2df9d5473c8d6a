use super::*;

const PG: PgId = PgId { pool: PoolId(2), index: 7 };
const OBJECT: ObjectKey = ObjectKey { ino: Ino(0x0102), index: 3 };

#[test]
fn keys_are_big_endian_and_sort_as_their_ids() {
    let key = block_key(PG, OBJECT, 9);
    let bytes = [0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9];
    assert_eq!(key, bytes);
    assert_eq!(decode_pg(&key).unwrap(), PG);
    assert_eq!(decode_object_key(&key).unwrap(), OBJECT);
    assert_eq!(decode_block_number(&key).unwrap(), 9);
    assert!(record_key(PG, b"\xff\xff") < pg_end(PG).unwrap());
    assert_eq!(pg_end(PgId { pool: PoolId(u32::MAX), index: u32::MAX }), None);
    assert_eq!(pg_end(PgId { pool: PoolId(1), index: u32::MAX }).unwrap(), pg_key(PgId { pool: PoolId(2), index: 0 }));
}

#[test]
fn a_header_survives_and_its_bytes_are_fixed() {
    let header = ObjectHeader { size: 1, generation: 2, deleted: true, sessions_before: 3 };
    let bytes = encode_header(&header);
    assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(decode_header(b"", &bytes).unwrap(), header);
    assert!(decode_header(b"", &bytes[1..]).is_err());
}

#[test]
fn a_sealed_value_is_bound_to_its_bytes_its_key_and_its_space() {
    let sealed = seal(Space::Blocks, b"key", b"value");
    assert_eq!(unseal(Space::Blocks, b"key", &sealed).unwrap(), &b"value"[..]);
    assert!(matches!(unseal(Space::Blocks, b"kez", &sealed), Err(EngineError::Corrupt { .. })));
    assert!(matches!(unseal(Space::Headers, b"key", &sealed), Err(EngineError::Corrupt { .. })));
    assert!(matches!(unseal(Space::Blocks, b"key", &sealed.slice(..3)), Err(EngineError::Corrupt { .. })));
    for byte in 0..sealed.len() {
        let mut rotten = sealed.to_vec();
        rotten[byte] ^= 0x10;
        assert!(unseal(Space::Blocks, b"key", &rotten.into()).is_err(), "byte {byte}");
    }
}

#[test]
fn errors_name_what_is_corrupt() {
    let text = corrupt(Space::Blocks, &block_key(PG, OBJECT, 9)).to_string();
    assert!(text.contains("block 9 of object 258.3 of pg 2.7"), "{text}");
    let text = corrupt(Space::Records, &record_key(PG, b"i/\x01")).to_string();
    assert!(text.contains("record i/\\x01 of pg 2.7"), "{text}");
}
