//! Which child subtrees a directory has below it.

use pando_proto::{Ino, SubtreeId};
use smallvec::SmallVec;

use crate::Namespace;
use crate::api::{Context, Fetch};
use crate::view::View;

/// Directories are not this deep.
const MAX_DEPTH: u32 = 100_000;

impl Namespace {
    /// Children of this subtree whose names are in `dir` or below it.
    ///
    /// # Errors
    /// Records that are not in memory: fetch, install, ask again.
    pub fn children_below(&mut self, dir: Ino, ctx: &Context) -> Result<Vec<SubtreeId>, SmallVec<[Fetch; 2]>> {
        let (root, children) = (self.config.root, self.tree.children.clone());
        let mut view = View::new(self, ctx);
        let mut below = Vec::new();
        for (child, parent_dir) in children {
            let mut here = parent_dir;
            for _ in 0..MAX_DEPTH {
                if here == dir {
                    below.push(child);
                }
                if here == dir || here == root {
                    break;
                }
                // What is not there, or cannot be read, is not below; what is missing is asked for in one round.
                match view.inode(here) {
                    Ok(inode) => here = Ino(inode.parent),
                    Err(_) => break,
                }
            }
        }
        if view.missing.is_empty() { Ok(below) } else { Err(view.missing) }
    }
}
