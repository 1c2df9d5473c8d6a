//! The object storage daemon: engines, group commit, replication, record and object services
