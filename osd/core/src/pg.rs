//! One copy of a placement group.
//!
//! | file | what goes there |
//! |---|---|
//! | `configure` | what a new configuration does |
//! | `requests` | clients' requests at the primary: order, fences, windows, reads |
//! | `forget` | windows of ended sessions and tombstones go |
//! | `purge` | many objects of a file are deleted at once, and none of them comes back |
//! | `replicate` | the log at the primary: submitting, acknowledging, deciding |
//! | `peers` | the primary's view of the others: probing, resending |
//! | `lead` | in peering: which member's content counts, catching up by log, making way |
//! | `load` | state that the primary reads from its engine: fences, headers, windows |
//! | `unreadable` | own content that the primary cannot read: trying again, making way |
//! | `sync` | bringing another copy to the primary's content, range by range |
//! | `member` | a copy that follows a primary |

mod configure;
mod forget;
mod lead;
mod load;
mod member;
mod peers;
mod purge;
mod replicate;
mod requests;
mod sync;
mod unreadable;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use pando_proto::{ClientId, Error, OsdId, PgId, Reason, ShardId, SubtreeId};
use rustc_hash::FxHashMap;

use crate::cache::Cache;
use crate::fence::Fence;
use crate::log::Log;
use crate::position::{Position, Stored};
use crate::request::{Action, Configuration, Load, Purge, Reads, Reply, Request, Sessions, Token};
use crate::session::Window;
use crate::{ObjectHeader, ObjectKey};

use member::Member;
use peers::Peer;
use purge::Listing;
use unreadable::Reading;

/// Writes that may wait for members at once; more wait their turn.
const MAX_IN_FLIGHT: u64 = 4096;
/// Bytes of the log; it holds what is in flight, and little more.
const MAX_LOG_BYTES: usize = 64 << 20;
/// Requests that wait for their turn; more are refused.
const MAX_HELD: usize = 8192;
/// Objects given up in one transaction.
const DISCARD_AT_ONCE: usize = 64;
/// Fences kept in memory per PG.
const FENCES: usize = 16 << 10;

/// What a copy is in the current configuration.
enum Role {
    /// Not in it, or no configuration known yet.
    Outsider,
    /// Follows a primary.
    Member(Member),
    /// Orders writes and answers reads.
    Primary(Box<Primary>),
}

/// How far a primary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Writing down that it serves this configuration; all earlier commits end before that one.
    Promising,
    /// Bringing all members to one log (R25).
    Peering,
    /// Reading the sessions' windows.
    Loading,
    /// Serving.
    Active,
    /// A member knows a higher configuration: nothing may be served until the map tells of it.
    Superseded,
    /// Another member holds what this copy has lost: the mon was asked to make that one primary.
    MakingWay,
    /// Its own content is a mixture, and no other member's is complete; or what was acknowledged is missing: an
    /// administrator has to decide.
    Broken,
}

struct Primary {
    stage: Stage,
    peers: BTreeMap<OsdId, Peer>,
    /// The member that was asked for entries, and the ticket.
    pulling: Option<(OsdId, u64)>,
    /// Members whose log does not reach back far enough.
    cannot_pull: Vec<OsdId>,
    /// Knows a write that all members held once and that no complete one holds any more.
    missing: Option<OsdId>,
    /// All up to this number is on every member.
    decided: u64,
    /// Marks of undecided writes are gone up to this number.
    released: u64,
    /// Reads to be tried again.
    woken: Vec<Token>,
    /// Replies and reads that wait for a number to be decided.
    waiting: BTreeMap<u64, Vec<Waiter>>,
    /// Requests that wait for their turn, oldest first.
    held: VecDeque<(Token, Request)>,
    /// Requests that wait for state.
    loading: FxHashMap<Load, (Reading, Vec<(Token, Request)>)>,
    /// The load of sessions.
    sessions: Reading,
    /// Reads not answered yet.
    reads: BTreeMap<Token, Read>,
    /// Those of them that are being evaluated.
    executing: Vec<Token>,
    /// Reads and copies that keep writes out, having been overtaken too often.
    barriers: usize,
    /// Last undecided write of each record and object.
    records: BTreeMap<Bytes, u64>,
    objects: FxHashMap<ObjectKey, u64>,
    fences: Cache<(ShardId, SubtreeId), Fence>,
    headers: Cache<ObjectKey, Option<ObjectHeader>>,
    windows: Option<BTreeMap<ClientId, (Window, u64)>>,
    /// Objects known to be tombstones, and the client id below which all sessions must have ended.
    tombstones: BTreeMap<ObjectKey, u64>,
    /// The walk that finds those of earlier times.
    walk: Walk,
    /// Deletions for which objects are being listed, by ticket.
    purges: BTreeMap<u64, Listing>,
}

/// A walk over all objects, in search of tombstones; one for each time as primary.
enum Walk {
    /// Goes on after this object at the next tick.
    At(Option<ObjectKey>),
    /// A page is being read.
    Reading(u64),
    Done,
}

enum Waiter {
    Reply(Token, Reply),
    Read(Token),
    Purge(Token, Box<Purge>),
}

struct Read {
    reads: Reads,
    tries: u8,
    /// Overtaken by a write.
    dirty: bool,
    /// Keeps writes out.
    barrier: bool,
    reading: Reading,
}

/// What to do when the oldest commit is durable.
enum Then {
    /// A write of the primary.
    Written(Position),
    /// The promise of a primary.
    PrimaryPromised,
    /// A primary took over an entry of a member.
    Adopted(Position),
    /// Says something to a primary, as of when the commit was submitted: what was submitted later is not durable yet.
    Say(OsdId, crate::Message),
    /// A member applied an entry.
    Applied(OsdId, Position),
    /// A member installed a range.
    Installed(OsdId, u64),
    Nothing,
}

/// One copy of a placement group: see the crate's documentation.
pub struct Pg {
    id: PgId,
    me: OsdId,
    headers_capacity: usize,
    configuration: Configuration,
    sessions: Arc<Sessions>,
    /// As after all commits submitted so far.
    stored: Stored,
    /// Number of the last write that is durable here.
    durable: u64,
    pending: VecDeque<Then>,
    log: Log,
    role: Role,
    full: bool,
    damage: Damage,
    damaged_in: u64,
    /// Made way for what it could read and not understand. If that comes again after all was replaced, the others hold
    /// the same, and to make way once more is of no use.
    senseless: bool,
    next_ticket: u64,
    actions: Vec<Action>,
}

/// Whether a part of the own content is known to be unreadable, so that a write on it was lost (I10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    /// The primary may still count on this copy.
    Untold,
    /// The primary knows that it has to replace all.
    Told,
}

/// Whom it concerns that a commit was refused, for own content that it builds on is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerned {
    /// This copy only: its primary brings it all content anew.
    Copy,
    /// Only the one who asked for it, if any: no other copy has got any write that was refused.
    Request(Option<Token>),
    /// The placement group: others hold what its primary has lost.
    Group,
}

/// For people and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Serving clients.
    pub active: bool,
    /// Its configuration.
    pub config: u64,
    /// Its place in the log.
    pub position: Position,
    /// Its content is a mixture.
    pub incomplete: bool,
}

impl Pg {
    /// A copy that holds what `stored` says. Caches up to `headers` object headers.
    pub fn new(id: PgId, me: OsdId, stored: Stored, headers: usize) -> Self {
        Self {
            id,
            me,
            headers_capacity: headers,
            configuration: Configuration::default(),
            sessions: Arc::default(),
            stored,
            durable: stored.position.seq,
            pending: VecDeque::new(),
            log: Log::default(),
            role: Role::Outsider,
            full: false,
            damage: Damage::None,
            damaged_in: 0,
            senseless: false,
            next_ticket: 1,
            actions: Vec::new(),
        }
    }

    /// A copy that holds what `stored` says, but a part of it is unreadable: as a member it is brought everything
    /// anew. As the primary it serves nothing up to configuration `config`, in which it was damaged: writes that it has
    /// lost may be on others. In a later one it goes on as after a crash.
    pub fn damaged(id: PgId, me: OsdId, stored: Stored, headers: usize, config: u64) -> Self {
        Self { damage: Damage::Untold, damaged_in: config, ..Self::new(id, me, stored, headers) }
    }

    /// The oldest commit was refused, for own content that it builds on is damaged, and with it all behind it. Whom
    /// does it concern? This machine has to be replaced, by one that begins with what is durable.
    pub fn concerned(&self) -> Concerned {
        let Role::Primary(primary) = &self.role else { return Concerned::Copy };
        if !primary.peers.is_empty() {
            return Concerned::Group;
        }
        let seq = match self.pending.front() {
            Some(Then::Written(position)) => position.seq,
            _ => return Concerned::Request(None),
        };
        Concerned::Request(primary.waiting.get(&seq).and_then(|waiting| {
            waiting.iter().find_map(|waiter| match waiter {
                Waiter::Reply(token, _) | Waiter::Purge(token, _) => Some(*token),
                Waiter::Read(_) => None,
            })
        }))
    }

    /// What is to be done since the last call, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether the own disk is full. What needs space is refused while it is so on any copy that writes go to (I9).
    pub fn set_full(&mut self, full: bool) {
        if std::mem::replace(&mut self.full, full) != full {
            self.tell_space();
        }
    }

    /// For people and tests.
    pub fn status(&self) -> Status {
        let active = matches!(&self.role, Role::Primary(primary) if primary.stage == Stage::Active);
        Status {
            active,
            config: self.configuration.number,
            position: self.stored.position,
            incomplete: self.stored.incomplete || self.damage != Damage::None,
        }
    }

    /// The oldest `count` commits are durable.
    pub fn committed(&mut self, count: usize) {
        let mut applied = None;
        for _ in 0..count {
            match self.pending.pop_front() {
                Some(Then::Written(position) | Then::Adopted(position)) => self.durable = position.seq,
                Some(Then::Applied(from, position)) => {
                    self.durable = position.seq;
                    applied = Some((from, position));
                }
                Some(Then::PrimaryPromised) => self.promised(),
                Some(Then::Say(to, mut message)) => {
                    if let crate::Body::Position { told, .. } = &mut message.body {
                        // What was told of that since is not to be taken back.
                        told.full = self.full;
                    }
                    self.actions.push(Action::Send(to, message));
                }
                Some(Then::Installed(from, ticket)) => self.answer(from, crate::Body::Synced { ticket, equal: true }),
                Some(Then::Nothing) | None => {}
            }
        }
        if let Some((from, position)) = applied {
            // One acknowledgement speaks for all before it.
            let full = self.full;
            self.answer(from, crate::Body::Ack { position, full });
        }
        self.member_drained();
        self.advance();
    }

    /// Whether this copy has no place in the configuration and yet content: it may be given up, if the map shows that
    /// others hold the PG.
    pub fn is_leftover(&self) -> bool {
        let content = self.stored.position != Position::default() || self.stored.incomplete;
        matches!(self.role, Role::Outsider) && self.configuration.number >= self.stored.promised && content
    }

    /// Gives up the content of a copy that [`is_leftover`](Self::is_leftover), all its `objects` included.
    pub fn discard(&mut self, objects: Vec<ObjectKey>) {
        if !self.is_leftover() {
            return;
        }
        self.log.clear();
        self.stored.incomplete = true;
        let all = crate::Change::DeleteRange { start: crate::keys::REPLICATED, end: Bytes::new() };
        self.commit(vec![all, self.stored.to_change()], Then::Nothing);
        for some in objects.chunks(DISCARD_AT_ONCE) {
            let forget = some.iter().map(|object| crate::Change::Forget { object: *object });
            self.commit(forget.collect(), Then::Nothing);
        }
        self.stored = Stored { promised: self.stored.promised, ..Stored::default() };
        self.durable = 0;
        self.commit(vec![self.stored.to_change()], Then::Nothing);
    }

    fn commit(&mut self, changes: Vec<crate::Change>, then: Then) {
        self.pending.push_back(then);
        self.actions.push(Action::Commit(changes));
    }

    fn reply(&mut self, token: Token, result: Result<Reply, Error>) {
        self.actions.push(Action::Reply(token, result));
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn primary(&mut self) -> Option<&mut Primary> {
        match &mut self.role {
            Role::Primary(primary) => Some(primary),
            _ => None,
        }
    }

    fn not_owner(&self) -> Error {
        let message = format!("this OSD is not the primary of placement group {}", self.id);
        Error::new(Reason::NotOwner, message).with_epoch(self.sessions.epoch.0)
    }
}

impl Primary {
    fn new(headers: usize) -> Self {
        Self {
            stage: Stage::Promising,
            peers: BTreeMap::new(),
            pulling: None,
            cannot_pull: Vec::new(),
            missing: None,
            decided: 0,
            released: 0,
            woken: Vec::new(),
            waiting: BTreeMap::new(),
            held: VecDeque::new(),
            loading: FxHashMap::default(),
            sessions: Reading::default(),
            reads: BTreeMap::new(),
            executing: Vec::new(),
            barriers: 0,
            records: BTreeMap::new(),
            objects: FxHashMap::default(),
            fences: Cache::new(FENCES),
            headers: Cache::new(headers),
            windows: None,
            tombstones: BTreeMap::new(),
            walk: Walk::At(None),
            purges: BTreeMap::new(),
        }
    }
}
