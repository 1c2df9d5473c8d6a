//! Makes the child directories of subtrees that are to be spread subtrees of their own, whether they carry load or not;
//! the balancer deals them over the ranks then.
//!
//! The owner of the subtree does it, for it knows the names: it looks at the root from time to time, lists it in slices
//! when it has changed (R27), and splits one directory off after the other, the way any split goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::balancer::most_automatic_subtrees;
use pando_cluster_map::{ClusterMap, Subtree, settings};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Outcome;
use pando_proto::mds::{Caller, FileKind, Operation, ReaddirRequest, StatRequest, Target};
use pando_proto::{Errno, Error, Ino, Reason, SubtreeId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::asking::ask;
use crate::owner::{Control, ownership};
use crate::rank::Shared;
use crate::subtree::Call;

/// Child directories of one root that are made subtrees.
const MOST_CHILDREN: usize = 256;
/// Names of one root that are looked at.
const MOST_NAMES: usize = 64 << 10;
/// Names in one slice of a listing.
const SLICE: u32 = 256;
/// Between two looks at the roots.
const LOOK: Duration = Duration::from_secs(1);
/// A listing may take one part in so many of the time.
const RARELY: u32 = 20;
/// Before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// The same where there are more than may be split off.
const FULL: Duration = Duration::from_secs(30);
/// After so many failures the others wait as well.
const MOST_FAILURES: usize = 3;
/// For a subtree that is at something else.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of one root.
#[derive(Default)]
struct Seen {
    /// Version of the root at which all was split off.
    done: Option<u64>,
    /// Not to be listed before.
    next: Option<Instant>,
    /// The last time there were more directories than may become subtrees.
    full: bool,
}

/// Runs until the rank stops.
pub(crate) async fn spread_all(shared: Arc<Shared>) {
    let spreading = async {
        let mut seen = BTreeMap::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let map = shared.map.current();
            let wanted = wanted(&shared, &map);
            seen.retain(|id, _| wanted.contains(id));
            for id in wanted {
                look(&shared, id, seen.entry(id).or_default()).await;
            }
        }
    };
    tokio::select! {
        () = spreading => {}
        () = shared.shutdown.stopped() => {}
    }
}

/// Subtrees of this rank that are to be spread.
fn wanted(shared: &Shared, map: &ClusterMap) -> BTreeSet<SubtreeId> {
    if map.setting_u64(settings::BALANCER_MODE) == settings::BALANCER_OFF {
        return BTreeSet::new();
    }
    let ours = |id: SubtreeId| ownership(map, id, shared.rank, shared.incarnation).is_some();
    let spread = map.subtrees.iter().filter(|(id, subtree)| subtree.spread && ours(**id));
    spread.map(|(id, _)| *id).collect()
}

/// Children of the root that are subtrees, and how many more there may be.
fn room(map: &ClusterMap, id: SubtreeId) -> usize {
    let of_root = |root: Ino| map.children(id).filter(|(_, child)| child.parent_dir == Some(root)).count();
    let children = map.subtrees.get(&id).map_or(0, |subtree| of_root(subtree.root));
    let of_all = most_automatic_subtrees(map).saturating_sub(map.subtrees.len());
    MOST_CHILDREN.saturating_sub(children).min(of_all)
}

async fn look(shared: &Shared, id: SubtreeId, seen: &mut Seen) {
    if seen.next.is_some_and(|next| Instant::now() < next) {
        return;
    }
    if let Err(error) = spread(shared, id, seen).await {
        // It is just being opened, or goes elsewhere; or its root cannot be read, which others will say as well.
        tracing::debug!(subtree = %id, %error, "its child directories were not looked at");
    }
}

async fn spread(shared: &Shared, id: SubtreeId, seen: &mut Seen) -> Result<(), Error> {
    let root = shared.map.current().subtrees.get(&id).map(|subtree| subtree.root).ok_or_else(not_here)?;
    let version = version(shared, id, root).await?;
    if seen.done == Some(version) {
        return Ok(());
    }
    let began = Instant::now();
    let names = list(shared, id, root).await?;
    seen.next = Some(Instant::now() + began.elapsed() * RARELY);
    match split_all(shared, id, root, names).await {
        Ended::Done => (seen.done, seen.full) = (Some(version), false),
        Ended::Failed => seen.next = Some(Instant::now() + AGAIN),
        Ended::Full => {
            if !std::mem::replace(&mut seen.full, true) {
                let message = "it has more child directories than become subtrees of their own: the others stay in it";
                tracing::info!(subtree = %id, most = MOST_CHILDREN, message);
            }
            seen.next = Some(Instant::now() + FULL);
        }
    }
    Ok(())
}

enum Ended {
    Done,
    /// Some were not split off.
    Failed,
    /// There are more than may be.
    Full,
}

async fn split_all(shared: &Shared, id: SubtreeId, root: Ino, names: Vec<Bytes>) -> Ended {
    let (mut split, mut failed) = (0, 0);
    let mut ended = Ended::Done;
    for name in names {
        let map = shared.map.current();
        // The wish, or the owner, may have changed meanwhile.
        if failed >= MOST_FAILURES || !wanted(shared, &map).contains(&id) {
            ended = Ended::Failed;
            break;
        }
        if room(&map, id) == 0 {
            ended = Ended::Full;
            break;
        }
        let began = Instant::now();
        match split_off(shared, id, root, &name).await {
            Ok(()) => split += 1,
            Err(error) => {
                let error = error.at(&name[..]);
                tracing::info!(subtree = %id, %error, "a child directory was not split off; it is tried again");
                failed += 1;
            }
        }
        // Those who work in the subtree get as much time as they had to wait.
        tokio::time::sleep(began.elapsed()).await;
    }
    if split > 0 {
        tracing::info!(subtree = %id, directories = split, "child directories were made subtrees, to be spread");
    }
    if failed > 0 { Ended::Failed } else { ended }
}

async fn split_off(shared: &Shared, id: SubtreeId, root: Ino, name: &Bytes) -> Result<(), Error> {
    let target = Target { base: root.0, path: name.clone() };
    let split = |reply| Control::Split { target: target.clone(), automatic: true, reply };
    match ask(shared, id, PATIENCE, split).await {
        Ok(_) => Ok(()),
        // Removed, renamed, or split off by somebody else: the root has changed, and is looked at again.
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
        Err(error) if shared.map.current().subtrees.values().any(|other| is_at(other, root, name)) => {
            tracing::debug!(%error, "it is a subtree already");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn is_at(subtree: &Subtree, dir: Ino, name: &Bytes) -> bool {
    subtree.parent_dir == Some(dir) && subtree.name[..] == name[..]
}

fn not_here() -> Error {
    Error::new(Reason::Unavailable, "it is not served here at the moment")
}

/// An operation of the rank itself.
async fn run(shared: &Shared, id: SubtreeId, op: Op) -> Result<Outcome, Error> {
    let served = shared.served(id).ok_or_else(not_here)?;
    let (reply, result) = oneshot::channel();
    let operation = Operation { op: Some(op) };
    served.address.send(Call { operation, reply }).await.map_err(|_| not_here())?;
    match result.await.map_err(|_| not_here())?.result {
        Some(Outcome::Error(status)) => Err(Error::from_rpc_status(status)),
        Some(Outcome::Redirect(_)) | None => Err(not_here()),
        Some(outcome) => Ok(outcome),
    }
}

async fn version(shared: &Shared, id: SubtreeId, root: Ino) -> Result<u64, Error> {
    let request = StatRequest { caller: Some(Caller::default()), target: Some(at(root)), follow: false };
    match run(shared, id, Op::Stat(request)).await? {
        Outcome::Stat(response) => Ok(response.attr.map_or(0, |attr| attr.version)),
        _ => Err(not_here()),
    }
}

fn at(root: Ino) -> Target {
    Target { base: root.0, ..Target::default() }
}

/// The names of child directories that are no subtrees, as many as may become some and one more.
async fn list(shared: &Shared, id: SubtreeId, root: Ino) -> Result<Vec<Bytes>, Error> {
    let map = shared.map.current();
    let roots: BTreeSet<Ino> = map.subtrees.values().map(|subtree| subtree.root).collect();
    let most = room(&map, id) + 1;
    let (mut found, mut names, mut after) = (Vec::new(), 0, Bytes::new());
    while found.len() < most && names < MOST_NAMES {
        let request = ReaddirRequest {
            caller: Some(Caller::default()),
            target: Some(at(root)),
            after: after.clone(),
            limit: SLICE,
            ..ReaddirRequest::default()
        };
        let Outcome::Readdir(slice) = run(shared, id, Op::Readdir(request)).await? else { return Err(not_here()) };
        names += slice.entries.len();
        let Some(last) = slice.entries.last() else { break };
        after = last.name.clone();
        let directories = slice.entries.into_iter().filter(|entry| entry.kind() == FileKind::Directory);
        found.extend(directories.filter(|entry| !roots.contains(&Ino(entry.ino))).map(|entry| entry.name));
        if slice.end {
            break;
        }
        // The other tasks of this thread go first (R27).
        tokio::task::yield_now().await;
    }
    found.truncate(most);
    Ok(found)
}
