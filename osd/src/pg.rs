//! One placement group: the task that owns it, what it is asked, and what it waits for.

pub(crate) mod content;
mod damage;
pub(crate) mod fetch;
pub(crate) mod input;
mod jobs;
mod task;

pub(crate) use input::{Answer, Call, Client, Input, MapView, Responder, Room};
pub(crate) use task::spawn;
