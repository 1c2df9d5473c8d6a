//! The object storage daemon: placement groups of records and objects on a
//! pluggable [`engine`], replicated by primary copy.
//!
//! | file | what goes there |
//! |---|---|
//! | `engine` | where bytes are kept; group commit |
//! | `config`, `daemon` | what an OSD is started with; its life cycle |
//! | `pgs` | which placement groups are here, and the way to them |
//! | `pg` | the task that owns one placement group, and its reads |
//! | `services` | what clients and other OSDs call |
//! | `links` | streams to other OSDs |
//! | `wire` | messages of the core on the wire |

#![forbid(unsafe_code)]

mod config;
mod daemon;
pub mod engine;
mod links;
mod pg;
mod pgs;
mod services;
mod wire;

pub use config::{Config, Storage};
pub use daemon::{Handle, start};
