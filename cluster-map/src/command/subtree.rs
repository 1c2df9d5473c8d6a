//! Subtrees: split, merged, moved, and what people want of them.

/// See [`Command::SplitSubtree`](super::Command::SplitSubtree).
#[derive(Clone, PartialEq, prost::Message)]
pub struct SplitSubtree {
    /// The subtree that holds the directory.
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    /// Its epoch; another one is refused.
    #[prost(uint64, tag = "2")]
    pub parent_epoch: u64,
    /// The directory.
    #[prost(uint64, tag = "3")]
    pub root: u64,
    /// Directory that holds its dentry.
    #[prost(uint64, tag = "4")]
    pub parent_dir: u64,
    /// Its name there.
    #[prost(bytes = "vec", tag = "5")]
    pub name: Vec<u8>,
    /// For people; the end of a long one is kept.
    #[prost(bytes = "vec", tag = "6")]
    pub path_hint: Vec<u8>,
    /// Child subtrees of the parent that lie below the new root.
    #[prost(uint64, repeated, tag = "7")]
    pub adopted: Vec<u64>,
    /// Not asked for by a person: it may be merged back when it is idle.
    #[prost(bool, tag = "8")]
    pub automatic: bool,
}

/// See [`Command::MergeSubtree`](super::Command::MergeSubtree).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MergeSubtree {
    /// The subtree that goes.
    #[prost(uint64, tag = "1")]
    pub child: u64,
    /// Its epoch; another one is refused.
    #[prost(uint64, tag = "2")]
    pub child_epoch: u64,
    /// Of its parent; another one is refused.
    #[prost(uint64, tag = "3")]
    pub parent_epoch: u64,
}

/// See [`Command::StartMove`](super::Command::StartMove).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StartMove {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// The rank that is to become its owner.
    #[prost(uint32, tag = "2")]
    pub to: u32,
    /// It is to be merged into its parent there: no pin keeps it any longer.
    #[prost(bool, tag = "3")]
    pub to_merge: bool,
}

/// See [`Command::CommitMove`](super::Command::CommitMove).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CommitMove {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Its owner up to now; another one is refused.
    #[prost(uint32, tag = "2")]
    pub from: u32,
    /// Its epoch up to now; another one is refused.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// The migration; another one is refused.
    #[prost(uint64, tag = "4")]
    pub move_id: u64,
}

/// See [`Command::CancelMove`](super::Command::CancelMove).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CancelMove {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// The migration.
    #[prost(uint64, tag = "2")]
    pub move_id: u64,
}

/// See [`Command::RenewSubtree`](super::Command::RenewSubtree).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RenewSubtree {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Its epoch up to now. Nothing happens if it is over already.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
}

/// See [`Command::RaiseRoutes`](super::Command::RaiseRoutes).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RaiseRoutes {
    /// These, and all subtrees below them.
    #[prost(uint64, repeated, tag = "1")]
    pub subtrees: Vec<u64>,
}

/// See [`Command::PinSubtree`](super::Command::PinSubtree).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PinSubtree {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Where it is to be; nowhere in particular when absent.
    #[prost(uint32, optional, tag = "2")]
    pub rank: Option<u32>,
}

/// See [`Command::SpreadSubtree`](super::Command::SpreadSubtree).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SpreadSubtree {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Whether to spread.
    #[prost(bool, tag = "2")]
    pub spread: bool,
}
