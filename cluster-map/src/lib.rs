//! The cluster map: who is a member and who owns what.
//!
//! A core: no I/O, no clock, no dice. The mon applies [`Command`]s from its
//! Raft log; everyone else reads [`ClusterMap`].
//!
//! | file | what |
//! |---|---|
//! | `map` | the map and what readers ask it |
//! | `convert` | the wire form and its checks |
//! | `command`, `command/` | commands, their results and their log format |
//! | `apply/` | what each command does |
//! | `balancer/` | which subtrees move, are split and are merged |
//! | `placement` | which OSDs hold a PG |
//! | `invariants` | what holds after every command |
//! | `settings` | names, defaults and ranges |

#![forbid(unsafe_code)]

mod apply;
pub mod balancer;
mod command;
mod convert;
pub mod invariants;
mod map;
pub mod placement;
pub mod settings;

pub use command::{
    AllocateInos, Assignment, CancelMove, Command, CommandError, CommandResult, CommandValue, CommitMove,
    ConfirmMember, CreateCluster, DaemonState, DecideTransaction, DrainRank, EndSession, FinishTransactions,
    ForgetLongerLease, MergeSubtree, Participant, PinSubtree, PoolSpec, RaiseRoutes, RankDown, RegisterClient,
    RegisterOsd, RegisterRank, RemoveDaemon, RenewSubtree, Reparent, SetMon, SetSetting, SplitSubtree, SpreadSubtree,
    StartMove, TransactionName,
};
pub use convert::MapError;
pub use map::{
    ClusterMap, Decision, InoGrant, Lineage, LongerLease, Osd, Pg, PgState, Pool, RankInfo, Session, Subtree,
    Transaction, TransactionId,
};
