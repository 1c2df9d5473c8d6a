//! Mons over TCP on free ports of this machine.

mod group;
mod leases;
mod refusals;
mod single;
mod support;
mod watch;
