//! Load for file systems: replay of recorded builds, small files, and what the machine allows.
//! `loadgen/README.md` describes the commands and the reports.

#![forbid(unsafe_code)]

pub mod cli;
pub mod clients;
pub mod compare;
pub mod content;
pub mod floor;
pub mod leftovers;
pub mod measure;
pub mod model;
mod output;
pub mod progress;
pub mod ranks;
pub mod replay;
pub mod report;
pub mod small_files;
pub mod state;
pub mod target;
pub mod trace;
