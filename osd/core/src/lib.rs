//! State machine of a placement group: configurations, order of writes,
//! fences, windows of sessions, catching up. No I/O, no clock, no dice: inputs
//! are calls of [`Pg`], outputs are [`Action`]s.

#![forbid(unsafe_code)]

mod change;

pub use change::{Change, ObjectHeader, ObjectKey};
