//! Which subtree is meant, who serves it, and what its owner is asked.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pando_client::Client;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{MergeRequest, SplitRequest, Target};
use pando_proto::{Epoch, Errno, Error, Reason, SubtreeId};
use pando_rpc::{Net, TcpNet};
use tokio::time::Instant;

use crate::args::SubtreeName;
use crate::failure::Failure;
use crate::output;
use crate::session::{Session, finish};

/// Symlinks that a path may lead through, as Linux has it.
const MAX_LINKS: usize = 40;
const BACKOFF: Duration = Duration::from_millis(50);

type Owner = SubtreeServiceClient<tonic::transport::Channel>;

fn owner(address: &str) -> Result<Owner, Error> {
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    Ok(SubtreeServiceClient::new(pando_rpc::channel(&net, address)?))
}

/// The subtree that is meant.
///
/// Errors: a path at which no subtree has its root; those of looking it up.
pub async fn resolve(session: &Session, name: &SubtreeName) -> Result<SubtreeId, Failure> {
    let path = match name {
        SubtreeName::Id(id) => return Ok(SubtreeId(*id)),
        SubtreeName::Path(path) => path,
    };
    let client = session.client().await?;
    let found = root_at(&client, path).await;
    finish(client, Ok(())).await?;
    found
}

async fn root_at(client: &Client, path: &Path) -> Result<SubtreeId, Failure> {
    let at = client.locate(path).await.map_err(|error| Failure::from(error).at(path))?;
    let map = client.map();
    let subtree = map.subtrees.get(&at.subtree);
    if subtree.is_some_and(|subtree| subtree.root == at.ino) {
        return Ok(at.subtree);
    }
    let hint = subtree.map(|subtree| output::shown(&subtree.path_hint)).unwrap_or_default();
    let text = format!("lies in {} ({hint}) and is no subtree of its own: `pando subtree split` makes one", at.subtree);
    Err(Failure::from(Error::new(Reason::UnknownId, text)).at(path))
}

/// Has the owner of a directory make it a subtree. The epoch is of a map that has it.
///
/// Errors: no directory, the root of a subtree, an owner that refuses.
pub async fn split(session: &Session, path: &Path) -> Result<(SubtreeId, Epoch), Failure> {
    let client = session.client().await?;
    let outcome = split_by(session, &client, path).await;
    finish(client, Ok(())).await?;
    outcome.map_err(|failure| failure.at(path))
}

async fn split_by(session: &Session, client: &Client, path: &Path) -> Result<(SubtreeId, Epoch), Failure> {
    let path = without_links(client, path).await?;
    let deadline = Instant::now() + session.call_limit();
    let mut asked = false;
    loop {
        let at = client.locate(&path).await?;
        let map = client.map();
        let Some(root) = map.subtrees.get(&at.subtree).map(|subtree| subtree.root) else {
            // The rank has a newer map than this client.
            retry(deadline, not_settled()).await?;
            continue;
        };
        if asked && root == at.ino {
            // A split whose answer was lost.
            return Ok((at.subtree, map.epoch));
        }
        let target = Target { base: root.0, path: at.path.as_os_str().as_bytes().to_vec().into() };
        let mut owner = owner(&at.address)?;
        let answer = owner.split(SplitRequest { target: Some(target) });
        match within(deadline, answer).await {
            Ok(done) => return Ok((SubtreeId(done.subtree), Epoch(done.map_epoch))),
            Err(error) => retry(deadline, error).await?,
        }
        asked = true;
    }
}

/// Has the owner of a subtree merge it into its parent. The epoch is of a map without it.
///
/// Errors: unknown, no parent, children, a parent that another rank serves.
pub async fn merge(session: &Session, subtree: SubtreeId) -> Result<Epoch, Failure> {
    let deadline = Instant::now() + session.call_limit();
    let mut asked = false;
    loop {
        let address = match owner_address(session, subtree).await? {
            Some(address) => address,
            // A merge whose answer was lost.
            None if asked => return Ok(Epoch(session.admin()?.status().await?.map_epoch)),
            None => return Err(Error::new(Reason::UnknownId, format!("there is no {subtree}")).into()),
        };
        let mut owner = owner(&address)?;
        match within(deadline, owner.merge(MergeRequest { subtree: subtree.0 })).await {
            Ok(done) => return Ok(Epoch(done.map_epoch)),
            Err(error) => retry(deadline, error).await?,
        }
        asked = true;
    }
}

/// `None` if the map does not know the subtree.
async fn owner_address(session: &Session, subtree: SubtreeId) -> Result<Option<String>, Failure> {
    let admin = session.admin()?;
    let subtrees = admin.list_subtrees().await?;
    let Some(owner) = subtrees.iter().find(|found| found.id == subtree.0).map(|found| found.owner) else {
        return Ok(None);
    };
    let ranks = admin.list_ranks().await?;
    Ok(ranks.into_iter().find(|rank| rank.rank == owner).map(|rank| rank.address))
}

fn not_settled() -> Error {
    Error::new(Reason::NotOwner, "the subtree changes its owner again and again")
}

async fn within<T>(
    deadline: Instant,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout_at(deadline, answer).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Error::new(Reason::Timeout, "the owner of the subtree did not answer in time")),
    }
}

/// Waits a moment if asking again, perhaps somebody else, may help.
async fn retry(deadline: Instant, error: Error) -> Result<(), Failure> {
    let passing = matches!(error.reason, Reason::NotOwner | Reason::Unavailable | Reason::Overloaded);
    if !passing || Instant::now() + BACKOFF >= deadline {
        return Err(error.into());
    }
    tokio::time::sleep(BACKOFF).await;
    Ok(())
}

/// The same path without symlinks and `..`: owners are told the way from the root of a subtree.
pub async fn without_links(client: &Client, path: &Path) -> Result<PathBuf, Failure> {
    let parts = |path: &Path| -> Vec<OsString> {
        path.components().map(|component| component.as_os_str().to_owned()).collect()
    };
    let mut ahead: VecDeque<OsString> = parts(path).into();
    let (mut done, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = ahead.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => done = "/".into(),
            Some(Component::ParentDir) => {
                done.pop();
            }
            Some(Component::Normal(name)) => {
                let at = done.join(name);
                if !client.symlink_metadata(&at).await?.is_symlink() {
                    done = at;
                    continue;
                }
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::posix(Errno::ELOOP).into());
                }
                parts(&client.read_link(&at).await?).into_iter().rev().for_each(|part| ahead.push_front(part));
            }
            _ => {}
        }
    }
    Ok(done)
}
