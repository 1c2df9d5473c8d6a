//! State machine of a placement group: configurations, order of writes,
//! fences, windows of sessions, catching up. No I/O, no clock, no dice: inputs
//! are calls of [`Pg`], outputs are [`Action`]s.
//!
//! | file | what goes there |
//! |---|---|
//! | `change` | the words a transaction is made of, shared with the engines |
//! | `keys` | where a PG keeps what within its records |
//! | `position` | place in the log, and what is durable of a PG's own state |
//! | `fence` | R2: which batches enter a shard |
//! | `session`, `object` | R22: which mutations of objects are applied |
//! | `message`, `request` | what comes in and goes out |
//! | `log` | recent and undecided entries |
//! | `pg` | the machine: one file each for primary, member and catching up |

#![forbid(unsafe_code)]

mod cache;
mod change;
mod fence;
pub mod keys;
mod log;
mod message;
mod object;
mod pg;
mod position;
mod request;
mod session;

pub use change::{Change, ObjectHeader, ObjectKey};
pub use fence::Fence;
pub use message::{Body, Cursor, Entry, Message, ObjectCopy, Page, PageQuery, PageRange, Part, Told};
pub use object::{check_read_generation, later};
pub use pg::{Concerned, Pg, Status};
pub use position::{Position, Stored};
pub use request::{
    Action, Batch, Configuration, Load, Loaded, Mutation, MutationKind, Purge, Reads, Reply, Request, Sessions, Token,
    Verdict,
};
