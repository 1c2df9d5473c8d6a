//! The monitor: a Raft group that holds the cluster map.
//!
//! | file | what |
//! |---|---|
//! | `config` | how a mon is set up |
//! | `storage` | superblock, log, hard state and snapshot in redb |
//! | `node` | the one task that owns the Raft node, the map and the leases |
//! | `leases` | who may hold a lease, as the leader knows it (R13) |
//! | `balancer` | load reports, moves and hints, decisions remembered |
//! | `reads` | linearizable reads, many at once |
//! | `peers` | messages to the other mons |
//! | `mon` | proposals and reads as the services use them, forwarded where needed |
//! | `service/` | the gRPC services |
//! | `start` | putting it together |

#![forbid(unsafe_code)]

mod balancer;
mod config;
mod error;
mod leases;
mod logger;
mod mon;
mod node;
mod peers;
mod reads;
mod service;
mod start;
mod storage;

pub use config::{Config, Storage};
pub use error::Error;
pub use pando_cluster_map::PoolSpec;
pub use start::{Handle, start};
