//! A mon and OSDs in one process, through gRPC.

mod cluster;
mod faults;
mod hostile;
mod losses;
mod objects;
mod records;
mod replication;
mod rot;
