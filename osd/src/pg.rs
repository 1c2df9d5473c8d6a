//! One placement group: the task that owns it, what it is asked, and its reads.

pub(crate) mod content;
pub(crate) mod fetch;
pub(crate) mod input;
mod task;

pub(crate) use input::{Answer, Call, Client, Input, MapView, Responder};
pub(crate) use task::spawn;
