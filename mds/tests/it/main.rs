//! A rank over pools in memory, spoken to through its real stream.

mod cache;
mod commits;
mod data;
mod fake;
mod floor;
mod full;
mod harness;
mod keepalives;
mod merges;
mod moves;
mod once;
mod prepare;
mod splits;
mod takeover;
