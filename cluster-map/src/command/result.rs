//! What a command did, for whoever gave it, and as bytes between mons.

use pando_proto::{ClientId, Epoch, Ino, OsdId, SubtreeId};

use super::{CommandError, open, seal};
use crate::map::Decision;

/// What a command did. The epoch is that of the first map in which it holds, or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Of the map after it.
    pub epoch: Epoch,
    /// What else.
    pub value: CommandValue,
}

/// See [`CommandResult`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandValue {
    /// Nothing else to say.
    Done,
    /// An OSD's id and the incarnation of its process.
    Osd(OsdId, u64),
    /// The incarnation of a rank's process.
    Rank(u64),
    /// A client's id.
    Client(ClientId),
    /// First and length of a range.
    Inos(Ino, u64),
    /// A new subtree's id.
    Subtree(SubtreeId),
    /// The id of a migration; 0 when there is nothing to move.
    Move(u64),
    /// What was decided, by this command or an earlier one.
    Decided(Decision),
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct ResultMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(uint64, tag = "3")]
    first: u64,
    #[prost(uint64, tag = "4")]
    second: u64,
}

impl CommandResult {
    /// The form between mons.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, first, second) = match self.value {
            CommandValue::Done => (0, 0, 0),
            CommandValue::Osd(id, incarnation) => (1, u64::from(id.0), incarnation),
            CommandValue::Rank(incarnation) => (2, incarnation, 0),
            CommandValue::Client(id) => (3, id.0, 0),
            CommandValue::Inos(first, count) => (4, first.0, count),
            CommandValue::Subtree(id) => (5, id.0, 0),
            CommandValue::Move(id) => (6, id, 0),
            CommandValue::Decided(decision) => (7, decision.number(), 0),
        };
        seal(&ResultMessage { epoch: self.epoch.0, kind, first, second })
    }

    /// Reads the form between mons.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CommandError> {
        let message: ResultMessage = open(bytes)?;
        let value = match message.kind {
            0 => CommandValue::Done,
            1 => {
                let id = u32::try_from(message.first).map_err(|_| CommandError::Unreadable)?;
                CommandValue::Osd(OsdId(id), message.second)
            }
            2 => CommandValue::Rank(message.first),
            3 => CommandValue::Client(ClientId(message.first)),
            4 => CommandValue::Inos(Ino(message.first), message.second),
            5 => CommandValue::Subtree(SubtreeId(message.first)),
            6 => CommandValue::Move(message.first),
            7 => CommandValue::Decided(Decision::from_number(message.first).ok_or(CommandError::Unreadable)?),
            _ => return Err(CommandError::Unreadable),
        };
        Ok(Self { epoch: Epoch(message.epoch), value })
    }
}
