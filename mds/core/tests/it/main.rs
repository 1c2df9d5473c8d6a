//! The namespace driven as its shell drives it, over a store in memory.

mod between;
mod budget;
mod copies;
mod forest;
mod hostile;
mod inodes;
mod links;
mod model;
mod names;
mod open_files;
mod permissions;
mod races;
mod random;
mod rig;
mod sizes;
mod subtrees;
