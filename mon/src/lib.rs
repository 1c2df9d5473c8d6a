//! The monitor: a Raft group that holds the cluster map
