//! Mons over TCP on free ports of this machine, and on a simulated network.

mod group;
mod leases;
mod refusals;
mod simulated;
mod single;
mod support;
mod watch;
