//! Talking to OSDs: records over one stream per OSD, objects by unary calls,
//! both routed by the cluster map and repeated until their outcome is known.

#![forbid(unsafe_code)]

mod connections;
mod objects;
mod records;
mod retry;
mod sequences;

pub use objects::ObjectClient;
pub use records::RecordClient;

#[cfg(test)]
mod tests;
