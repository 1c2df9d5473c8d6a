//! Single steps, with everything that comes out of them.

mod catching_up;
mod configurations;
mod full;
mod lost;
mod purges;
mod serving;
mod unreadable;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_osd_core::{
    Action, Batch, Body, Change, Concerned, Configuration, Entry, Fence, Load, Loaded, Message, Mutation, MutationKind,
    ObjectHeader, ObjectKey, Page, PageRange, Part, Pg, Position, Reads, Reply, Request, Sessions, Stored, Token, Told,
    Verdict, keys,
};
use pando_proto::ids::METADATA_POOL;
use pando_proto::{ClientId, Epoch, Error, Ino, OsdId, PgId, Reason, ShardId, SubtreeId};

const PG: PgId = PgId { pool: METADATA_POOL, index: 0 };
const SHARD: ShardId = ShardId(1);
const ONE: SubtreeId = SubtreeId(1);

fn configuration(number: u64, members: &[u32], joining: &[u32], min_size: usize) -> Configuration {
    let list = |ids: &[u32]| ids.iter().copied().map(OsdId).collect();
    Configuration { number, members: list(members), joining: list(joining), min_size, forgiven: 0 }
}

fn stored(promised: u64, config: u64, seq: u64) -> Stored {
    Stored { promised, position: Position { config, seq }, ..Stored::default() }
}

fn told(ticket: u64, position: Position, incomplete: bool) -> Body {
    Body::Position { ticket, told: Told { position, decided: Position::default(), incomplete, full: false } }
}

fn acked(position: Position) -> Body {
    Body::Ack { position, full: false }
}

fn append(entry: Entry) -> Body {
    Body::Append(entry, Position::default())
}

fn batch(number: u64, key: &'static [u8]) -> Batch {
    let changes = vec![Change::Put { key: keys::record(SHARD, key), value: Bytes::from_static(b"v") }];
    Batch { shard: SHARD, subtree: ONE, epoch: 1, batch: number, changes, uses_reserve: false }
}

/// What a batch changes, its fence included.
fn changes(number: u64, key: &'static [u8]) -> Vec<Change> {
    let fence = Fence { epoch: 1, applied: (1, number) };
    let mut changes = batch(number, key).changes;
    changes.push(Change::Put { key: keys::fence(SHARD, ONE), value: fence.encode() });
    changes
}

fn with(mut changes: Vec<Change>, stored: Stored) -> Action {
    changes.push(stored.to_change());
    Action::Commit(changes)
}

fn send(to: u32, config: u64, body: Body) -> Action {
    Action::Send(OsdId(to), Message { config, body })
}

/// Answers the question for sessions, the only action.
fn sessions(pg: &mut Pg) {
    let actions = pg.take_actions();
    let [Action::LoadSessions(ticket)] = actions[..] else { panic!("{actions:?}") };
    pg.sessions_loaded(ticket, Ok(Vec::new()));
}

/// Answers the question for the fence, the only action: there is none yet.
fn no_fence(pg: &mut Pg) {
    let actions = pg.take_actions();
    let [Action::Load { ticket, load: load @ Load::Fence(SHARD, ONE) }] = actions[..] else { panic!("{actions:?}") };
    pg.loaded(ticket, load, Ok(Loaded::Fence(None)));
}

/// A primary that is alone and serves.
fn alone() -> Pg {
    let mut pg = Pg::new(PG, OsdId(0), Stored::default(), 16);
    pg.configure(configuration(1, &[0], &[], 1));
    assert_eq!(pg.take_actions(), [with(Vec::new(), stored(1, 0, 0))]);
    pg.committed(1);
    sessions(&mut pg);
    assert_eq!(pg.take_actions(), []);
    assert!(pg.status().active);
    pg
}

/// A primary of two that serves, with its fence loaded.
fn pair() -> Pg {
    let mut pg = Pg::new(PG, OsdId(0), Stored::default(), 16);
    pg.configure(configuration(1, &[0, 1], &[], 2));
    let actions = pg.take_actions();
    let [commit, Action::Send(OsdId(1), Message { config: 1, body: Body::Probe { ticket } })] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*commit, with(Vec::new(), stored(1, 0, 0)));
    pg.committed(1);
    assert_eq!(pg.take_actions(), [], "R25: not before the member has told its position");
    let body = told(*ticket, Position::default(), false);
    pg.message(OsdId(1), Message { config: 1, body });
    sessions(&mut pg);
    pg.request(0, Request::RaiseFence { shard: SHARD, subtree: ONE, epoch: 0 });
    no_fence(&mut pg);
    assert_eq!(pg.take_actions(), [Action::Reply(0, Ok(Reply::Raised(Fence::default())))]);
    pg
}

fn entry(config: u64, seq: u64, previous: (u64, u64), changes: Vec<Change>) -> Entry {
    Entry {
        position: Position { config, seq },
        previous: Position { config: previous.0, seq: previous.1 },
        changes: Arc::new(changes),
    }
}

fn ack(pg: &mut Pg, config: u64, seq: u64) {
    pg.message(OsdId(1), Message { config, body: acked(Position { config, seq }) });
}

/// A member in configuration 4 whose position is 7.
fn member() -> Pg {
    let mut pg = Pg::new(PG, OsdId(1), stored(3, 3, 7), 16);
    pg.configure(configuration(4, &[0, 1], &[], 2));
    pg.message(OsdId(0), Message { config: 4, body: Body::Probe { ticket: 9 } });
    pg.take_actions();
    pg
}
