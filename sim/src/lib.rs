//! The whole cluster under a simulated network, clock and disk, from one seed.
//!
//! | room | what is in it |
//! |---|---|
//! | [`cluster`] | the hosts of a run, and the run itself |
//! | [`stage`] | directed plays: a few clients that follow a script, on the same cluster |
//! | [`faults`], `admin` | what goes wrong; who splits, moves and merges meanwhile |
//! | [`load`], `hot`, `mortal` | clients: each alone with a model, all together on a few names, and one that dies |
//! | `twice` | requests that arrive once more, late |
//! | [`model`], [`history`], `verify` | what has to come out: contents, an order of all events, records and objects |
//! | [`gate`], `process`, `net`, [`disk`] | the simulated machine: freezes, clocks, connections, power cuts |

#![forbid(unsafe_code)]

mod admin;
mod board;
pub mod cluster;
pub mod disk;
pub mod faults;
pub mod gate;
pub mod history;
mod hot;
pub mod load;
pub mod model;
mod mortal;
mod net;
mod process;
pub mod stage;
mod twice;
mod verify;
