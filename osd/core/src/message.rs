//! What the members of a PG tell each other.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Change, ObjectHeader, ObjectKey, Position};

/// One write in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub position: Position,
    /// The place before it.
    pub previous: Position,
    /// What it changes, without the position record.
    pub changes: Arc<Vec<Change>>,
}

/// A message between the primary of a configuration and another copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Configuration of the sender.
    pub config: u64,
    /// What it says.
    pub body: Body,
}

/// See `replication.proto`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Body {
    Probe {
        ticket: u64,
    },
    /// With a write that is on all members by now.
    Append(Entry, Position),
    Begin {
        position: Position,
    },
    Digest {
        ticket: u64,
        range: PageRange,
        digest: Bytes,
    },
    Install {
        ticket: u64,
        part: Part,
    },
    Finish {
        ticket: u64,
        position: Position,
    },
    Pull {
        ticket: u64,
        after: Position,
    },

    Position {
        ticket: u64,
        told: Told,
    },
    Ack {
        position: Position,
        /// Its disk is full.
        full: bool,
    },
    Synced {
        ticket: u64,
        equal: bool,
    },
    Entries {
        ticket: u64,
        entries: Vec<Entry>,
    },
    Refused {
        promised: u64,
    },
}

/// What a copy says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its last write.
    pub position: Position,
    /// A write that all members held once.
    pub decided: Position,
    /// Its content is a mixture, or damaged.
    pub incomplete: bool,
    /// Its disk is full.
    pub full: bool,
}

impl Body {
    /// Whether a primary says this (else it is an answer to one).
    pub fn is_from_primary(&self) -> bool {
        match self {
            Self::Probe { .. } | Self::Append(..) | Self::Begin { .. } | Self::Digest { .. } => true,
            Self::Install { .. } | Self::Finish { .. } | Self::Pull { .. } => true,
            Self::Position { .. } | Self::Ack { .. } | Self::Synced { .. } => false,
            Self::Entries { .. } | Self::Refused { .. } => false,
        }
    }
}

/// A range of a PG's replicated content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageRange {
    /// Records with `start <= key < end`; an empty `end` is none.
    Records {
        /// First key.
        start: Bytes,
        /// First key beyond.
        end: Bytes,
    },
    /// Objects with `after < object <= through`; `None` is open.
    Objects {
        /// Last object before.
        after: Option<ObjectKey>,
        /// Last object.
        through: Option<ObjectKey>,
    },
}

impl PageRange {
    /// Where a walk goes on after it.
    pub fn next(&self) -> Cursor {
        match self {
            Self::Records { end, .. } if end.is_empty() => Cursor::Objects(None),
            Self::Records { end, .. } => Cursor::Records(end.clone()),
            Self::Objects { through: None, .. } => Cursor::End,
            Self::Objects { through, .. } => Cursor::Objects(*through),
        }
    }

    /// Whether a change touches the range.
    pub(crate) fn is_touched_by(&self, change: &Change) -> bool {
        match (self, change) {
            (Self::Records { start, end }, Change::Put { key, .. } | Change::Delete { key }) => {
                start <= key && (end.is_empty() || key < end)
            }
            (Self::Records { start, end }, Change::DeleteRange { start: from, end: to }) => {
                (end.is_empty() || from < end) && (to.is_empty() || start < to)
            }
            (Self::Objects { after, through }, change) => match change_object(change) {
                Some(object) => {
                    after.is_none_or(|after| after < object) && through.is_none_or(|through| object <= through)
                }
                None => false,
            },
            _ => false,
        }
    }
}

/// The object that a change touches.
pub(crate) fn change_object(change: &Change) -> Option<ObjectKey> {
    match change {
        Change::Put { .. } | Change::Delete { .. } | Change::DeleteRange { .. } => None,
        Change::Write { object, .. } | Change::Zero { object, .. } | Change::Truncate { object, .. } => Some(*object),
        Change::SetHeader { object, .. } | Change::Forget { object } => Some(*object),
    }
}

/// Where a walk over a PG's content stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Records from this key on.
    Records(Bytes),
    /// Objects after this one.
    Objects(Option<ObjectKey>),
    /// All seen.
    End,
}

/// Which part of its own content a copy is to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageQuery {
    /// A page of a convenient size.
    From {
        /// Its start.
        cursor: Cursor,
        /// Whether the content itself is wanted, or only the digest.
        content: bool,
    },
    /// This range.
    Range {
        /// Which.
        range: PageRange,
        /// As above.
        content: bool,
    },
}

/// What a copy read of its own content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// What it covers.
    pub range: PageRange,
    /// Of all in the range.
    pub digest: Bytes,
    /// Objects in the range.
    pub objects: Vec<ObjectKey>,
    /// The content, if it was asked for.
    pub part: Option<Part>,
}

/// All of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which range.
    pub range: PageRange,
    /// Its records.
    pub records: Vec<(Bytes, Bytes)>,
    /// Its objects.
    pub objects: Vec<ObjectCopy>,
}

impl Part {
    /// About how much it weighs in a message.
    pub fn weight(&self) -> usize {
        let records: usize = self.records.iter().map(|(key, value)| key.len() + value.len() + 16).sum();
        let piece = |object: &ObjectCopy| object.pieces.iter().map(|(_, data)| data.len() + 16).sum::<usize>() + 64;
        records + self.objects.iter().map(piece).sum::<usize>() + 64
    }
}

/// An object with all its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectCopy {
    /// Which.
    pub object: ObjectKey,
    /// Its header.
    pub header: ObjectHeader,
    /// (offset, bytes), without holes.
    pub pieces: Vec<(u64, Bytes)>,
}
