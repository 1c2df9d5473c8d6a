//! Which directory is meant, for a split.

use pando_proto::mds::Target;
use pando_proto::{Error, Ino, Reason, SubtreeId};
use smallvec::SmallVec;

use crate::Namespace;
use crate::api::{Context, Fetch, Located};
use crate::inode::is_dir;
use crate::permission::Who;
use crate::resolve::find;
use crate::stop::Stop;
use crate::view::View;

impl Namespace {
    /// Finds the directory that is to become a subtree. Repeat it on `Missing` as an operation.
    pub fn locate(&mut self, target: &Target, ctx: &Context) -> Located {
        let root = self.config.root;
        let mut view = View::new(self, ctx);
        let found = find(&mut view, Who::new(None), Some(target), true);
        if !matches!(found, Err(Stop::Missing)) {
            view.forget_foreign();
        }
        match found {
            Err(Stop::Missing) => Located::Missing(view.missing),
            Err(Stop::Cross) => Located::Cross(view.crossings),
            Err(Stop::Posix(errno)) => Located::Refused(Error::posix(errno).at(target.path.as_ref())),
            Err(Stop::Error(error)) => Located::Refused(*error),
            Err(_) => Located::Refused(Error::new(Reason::Unavailable, "the directory changes now: try again")),
            Ok((ino, _)) if ino == root => refuse("this is the root of a subtree already"),
            Ok((_, inode)) if !is_dir(&inode) || inode.dead => refuse("only a directory can become a subtree"),
            Ok((ino, inode)) => Located::Directory {
                ino,
                parent_dir: Ino(inode.parent),
                name: inode.name.clone(),
                path_hint: target.path.clone(),
                reads: view.reads,
            },
        }
    }

    /// The children of this subtree whose roots are below `dir`: a split at `dir` hands them on.
    ///
    /// # Errors
    /// Records that are not in memory: fetch, install, ask again.
    pub fn children_below(&mut self, dir: Ino) -> Result<Vec<SubtreeId>, SmallVec<[Fetch; 2]>> {
        let ctx = Context::default();
        let (children, mut below) = (self.tree.children.clone(), Vec::new());
        let mut view = View::new(self, &ctx);
        for (child, parent_dir) in children {
            if view.is_below(dir, parent_dir).unwrap_or(false) {
                below.push(child);
            }
        }
        if view.missing.is_empty() { Ok(below) } else { Err(view.missing) }
    }
}

fn refuse(message: &str) -> Located {
    Located::Refused(Error::new(Reason::InvalidRequest, message))
}
