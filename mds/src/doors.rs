//! Which subtrees are opened first when many come to this rank at once, as when another one has died: those for which
//! clients wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pando_proto::SubtreeId;
use tokio::sync::oneshot;

/// Takeovers at a time. More would only share the rank's thread and the OSDs, and all be late.
const AT_ONCE: usize = 16;
/// A takeover that takes longer waits for a placement group: it makes way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Clone)]
pub(crate) struct Doors(Rc<Inner>);

struct Inner {
    /// How many wait for a subtree.
    crowd: Box<dyn Fn(SubtreeId) -> usize>,
    open: Cell<usize>,
    waiting: RefCell<Vec<(SubtreeId, oneshot::Sender<Pass>)>>,
}

/// A subtree may be opened; the next one may when this is dropped.
pub(crate) struct Pass(Rc<Inner>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        Inner::admit(&self.0);
    }
}

impl Doors {
    pub fn new(crowd: impl Fn(SubtreeId) -> usize + 'static) -> Self {
        Self(Rc::new(Inner { crowd: Box::new(crowd), open: Cell::default(), waiting: RefCell::default() }))
    }

    /// Waits for its turn.
    pub async fn enter(&self, subtree: SubtreeId) -> Pass {
        let (sender, pass) = oneshot::channel();
        self.0.waiting.borrow_mut().push((subtree, sender));
        Inner::admit(&self.0);
        match pass.await {
            Ok(pass) => pass,
            // Only if nobody admits any more.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Inner {
    fn admit(this: &Rc<Self>) {
        while this.open.get() < AT_ONCE {
            let Some(next) = this.next() else { return };
            this.open.set(this.open.get() + 1);
            // Who has gone meanwhile gives it back at once.
            let _ = next.send(Pass(Rc::clone(this)));
        }
    }

    /// The one for which most wait, of those that still want to be opened.
    fn next(&self) -> Option<oneshot::Sender<Pass>> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|(_, sender)| !sender.is_closed());
        let crowds = waiting.iter().enumerate().map(|(at, (subtree, _))| ((self.crowd)(*subtree), at));
        // Of equal ones the first.
        let (_, at) = crowds.max_by(|(one, first), (other, second)| one.cmp(other).then(second.cmp(first)))?;
        Some(waiting.remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the tasks of this thread run.
    async fn run_others() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn those_are_opened_first_for_which_most_wait() {
        tokio::task::LocalSet::new().run_until(crowded()).await;
    }

    async fn crowded() {
        let crowd = |subtree: SubtreeId| match subtree.0 {
            103 => 5,
            105 => 9,
            _ => 0,
        };
        let (doors, order) = (Doors::new(crowd), Rc::new(RefCell::new(Vec::new())));
        let mut first = Vec::new();
        for subtree in 0..AT_ONCE as u64 {
            first.push(doors.enter(SubtreeId(subtree)).await);
        }
        let mut tasks = Vec::new();
        for subtree in 100..107 {
            let (doors, order) = (doors.clone(), Rc::clone(&order));
            tasks.push(tokio::task::spawn_local(async move {
                let _pass = doors.enter(SubtreeId(subtree)).await;
                order.borrow_mut().push(subtree);
                tokio::task::yield_now().await;
            }));
        }
        run_others().await;
        assert_eq!(*order.borrow(), [0u64; 0], "no more at once");
        // Nobody wants to open this one any more.
        tasks.remove(1).abort();
        run_others().await;
        first.pop();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [105, 103, 100, 102, 104, 106]);
        drop(first);
        let all: Vec<Pass> = futures_util::future::join_all((0..16).map(|one| doors.enter(SubtreeId(one)))).await;
        assert_eq!(all.len(), 16, "none is lost");
    }
}
