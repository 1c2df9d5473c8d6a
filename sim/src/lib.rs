//! The whole cluster under a simulated network, clock and disk, from one seed.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod disk;
pub mod faults;
pub mod load;
pub mod model;
pub mod net;
