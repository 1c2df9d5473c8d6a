//! Moving an inline body to objects (R24). The shell, on `NeedSpill`:
//! intent, commit; objects written durably under the new generation; finish, commit.

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::{DataHome, PurgeRecord};
use pando_proto::{Error, Ino, Reason};

use crate::Namespace;
use crate::api::{Change, Context};
use crate::busy::Busy;
use crate::cache::Slot;
use crate::data::to_objects;
use crate::inode::{Inode, encode, in_objects, is_file};
use crate::records::Key;
use crate::stop::Stop;
use crate::view::View;

impl Namespace {
    /// Blocks the ino and returns the intent to commit and the body to write as objects.
    /// The objects carry generation `generation + 1` of the placement before, and lie below `max_size`.
    ///
    /// The intent also writes `p/<ino>`: should nobody finish it, whoever comes next purges the objects.
    ///
    /// # Errors
    /// `Unavailable` if the inode or body is not in memory, is blocked, or nothing is left to spill: apply the operation anew.
    pub fn spill_intent(&mut self, ino: Ino, max_size: u64, ctx: &Context) -> Result<(Change, Bytes), Error> {
        let busy = self.is_blocked(ino);
        let mut view = View::new(self, ctx);
        let inode = view.try_inode(ino).ok().flatten();
        let Some(inode) = inode.filter(|inode| is_file(inode) && !in_objects(inode) && inode.size > 0 && !busy) else {
            return Err(again(ino));
        };
        let body = view.body(ino, &inode).map_err(|stop| match stop {
            Stop::Error(error) => *error,
            _ => again(ino),
        })?;
        let max_size = max_size.max(inode.size);
        let mut intent = (*inode).clone();
        intent.spill_generation = intent.generation + 1;
        intent.max_size = max_size;
        let purge = PurgeRecord {
            pool: view.ns.config.data_pool.0,
            object_size: view.ns.config.object_size,
            max_size,
            from: 0,
            generation: intent.spill_generation + 1,
            subtree: view.ns.config.tag(),
        };
        // The layout is fixed now: the setting may change before the spill ends.
        intent.pool = purge.pool;
        intent.object_size = purge.object_size;
        intent.version += 1;
        view.put_inode(ino, Arc::new(intent));
        view.put_record(Key::Purge(ino), Some(encode(&purge)));
        view.set_busy(ino, Some(Busy::Spill));
        view.take_change().map(|change| (change, body)).ok_or_else(|| again(ino))
    }

    /// The objects are durable: the file lives there now. Commit it, then wake who waits for the ino.
    ///
    /// # Errors
    /// `Internal` if no spill of the ino is under way.
    pub fn spill_finish(&mut self, ino: Ino) -> Result<Change, Error> {
        let ctx = Context::default();
        let inode = self.spilling(ino)?;
        let mut view = View::new(self, &ctx);
        let mut done = (*inode).clone();
        let (pool, object_size, max_size) = (done.pool, done.object_size, done.max_size);
        to_objects(&view, &mut done);
        (done.pool, done.object_size, done.max_size) = (pool, object_size, max_size);
        done.generation = done.spill_generation;
        done.spill_generation = 0;
        done.version += 1;
        view.put_inode(ino, Arc::new(done));
        view.put_body(ino, None);
        view.put_record(Key::Purge(ino), None);
        view.set_busy(ino, None);
        view.take_change().ok_or_else(|| again(ino))
    }

    /// The objects could not be written: the file stays inline, in a generation above theirs. Commit the change; its
    /// follow-up purges what was written.
    ///
    /// # Errors
    /// `Internal` if no spill of the ino is under way.
    pub fn spill_abort(&mut self, ino: Ino) -> Result<Change, Error> {
        let ctx = Context::default();
        let inode = self.spilling(ino)?;
        let mut view = View::new(self, &ctx);
        let mut done = (*inode).clone();
        let purge = PurgeRecord {
            pool: done.pool,
            object_size: done.object_size,
            max_size: done.max_size,
            from: 0,
            generation: done.spill_generation + 1,
            subtree: view.ns.config.tag(),
        };
        // Above the purge, as after any other.
        done.generation = done.spill_generation + 2;
        done.spill_generation = 0;
        done.max_size = 0;
        done.home = DataHome::Inline as i32;
        done.version += 1;
        view.put_inode(ino, Arc::new(done));
        view.put_record(Key::Purge(ino), Some(encode(&purge)));
        view.set_busy(ino, Some(Busy::Purge));
        view.follow_up(crate::api::FollowUp::Purge(ino, purge));
        view.take_change().ok_or_else(|| again(ino))
    }

    fn spilling(&mut self, ino: Ino) -> Result<Arc<Inode>, Error> {
        let none = || Error::new(Reason::Internal, format!("no spill of inode {ino} is under way"));
        if self.busy.get(&ino) != Some(&Busy::Spill) {
            return Err(none());
        }
        match self.cache.peek(ino).map(|node| &node.inode) {
            Some(Slot::Present(inode)) => Ok(Arc::clone(inode)),
            _ => Err(none()),
        }
    }
}

fn again(ino: Ino) -> Error {
    Error::new(Reason::Unavailable, format!("inode {ino} cannot be spilled now: apply the operation again"))
}
