//! Where in the subtree the operations are.

use bytes::Bytes;
use pando_proto::Ino;

use crate::Namespace;

impl Namespace {
    /// Child directories of the root (ino, name) with the operations in and below them since the last call.
    pub fn heat(&mut self) -> Vec<(Ino, Bytes, f64)> {
        Vec::new()
    }
}
