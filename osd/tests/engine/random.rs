//! Random transactions, compared with a naive model, also after closing and opening again.

use bytes::Bytes;
use pando_osd::engine::format::BLOCK_BYTES;
use pando_osd::engine::{Change, EngineKind, ObjectKey, Transaction};
use pando_proto::{Ino, PgId, PoolId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::model::Model;
use crate::store::Store;

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Transaction>),
    Reopen,
}

fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(0xff)], 0..4).prop_map(Bytes::from)
}

fn object() -> impl Strategy<Value = ObjectKey> {
    (1u64..3, 0u64..2).prop_map(|(ino, index)| ObjectKey { ino: Ino(ino), index })
}

/// Often at or beside the border of a block.
fn position() -> impl Strategy<Value = u64> {
    let block = BLOCK_BYTES as u64;
    prop_oneof![
        0..4 * block,
        (0u64..5, 0u64..5).prop_map(move |(number, off)| (number * block + off).saturating_sub(2)),
        Just(0),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let data = (position(), any::<u8>())
        .prop_map(|(length, seed)| (0..length).map(|at| seed.wrapping_add((at / 7) as u8)).collect::<Vec<u8>>().into());
    prop_oneof![
        3 => (key(), vec(any::<u8>(), 0..30)).prop_map(|(key, value)| Change::Put { key, value: value.into() }),
        1 => key().prop_map(|key| Change::Delete { key }),
        1 => (key(), key()).prop_map(|(start, end)| Change::DeleteRange { start, end }),
        4 => (object(), position(), data).prop_map(|(object, offset, data)| Change::Write { object, offset, data }),
        2 => (object(), position(), position())
            .prop_map(|(object, offset, length)| Change::Zero { object, offset, length }),
        2 => (object(), position()).prop_map(|(object, size)| Change::Truncate { object, size }),
        1 => (object(), 0u64..9, any::<bool>(), 0u64..9).prop_map(|(object, generation, deleted, sessions_before)| {
            Change::SetHeader { object, generation, deleted, sessions_before }
        }),
        1 => object().prop_map(|object| Change::Forget { object }),
    ]
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let pg = prop_oneof![Just((1, 0)), Just((1, u32::MAX)), Just((2, 0))];
    (pg, vec(change(), 1..6))
        .prop_map(|((pool, index), changes)| Transaction { pg: PgId { pool: PoolId(pool), index }, changes })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![4 => vec(transaction(), 1..4).prop_map(Step::Commit), 1 => Just(Step::Reopen)], 1..10)
}

fn run(kind: EngineKind, steps: Vec<Step>) {
    let mut store = Store::new(kind);
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Commit(transactions) => {
                store.engine().commit(&transactions).unwrap();
                transactions.iter().for_each(|transaction| model.apply(transaction));
            }
            Step::Reopen => store.reopen(),
        }
        model.compare(&**store.engine());
    }
    store.reopen();
    model.compare(&**store.engine());
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 2000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(256))]
    #[test]
    fn memory_does_as_the_model(steps in steps()) {
        run(EngineKind::Memory, steps);
    }
}

proptest! {
    #![proptest_config(cases(48))]
    #[test]
    fn fjall_does_as_the_model(steps in steps()) {
        run(EngineKind::Fjall, steps);
    }

    #[test]
    fn file_does_as_the_model(steps in steps()) {
        run(EngineKind::File, steps);
    }
}
