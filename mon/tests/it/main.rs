//! Mons over TCP on free ports of this machine, and on a simulated network.

mod group;
mod leases;
mod refusals;
mod simulated;
mod simulated_moves;
mod single;
mod subtrees;
mod support;
mod watch;
