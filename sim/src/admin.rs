//! Administrators: they split directories off, move subtrees, merge them back and drain ranks, at random moments, and
//! often something breaks right after they have begun.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_client::Client;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{MergeRequest, SplitRequest, Target};
use pando_proto::{Error, Rank, Reason, SubtreeId};
use pando_rpc::Net;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::board::Board;
use crate::faults::{self, Hosts, Window};
use crate::hot::APART;
use crate::load::Tally;

/// One step is given up after this long.
const STEP: Duration = Duration::from_secs(20);
/// Something breaks so soon after a step began: a handover takes a few round trips.
const TROUBLE_MILLIS: std::ops::Range<u64> = 0..250;
/// For so long.
const TROUBLE_LENGTH_MILLIS: std::ops::Range<u64> = 50..4500;

/// Splits the directory at `path` off.
///
/// Errors: those of the rank that owns it.
pub async fn split(client: &Client, net: &Arc<dyn Net>, path: &str) -> Result<SubtreeId, Error> {
    let place = client.locate(path).await?;
    let map = client.map();
    let root = map.subtrees.get(&place.subtree).map(|found| found.root.0);
    let root = root.ok_or_else(|| Error::new(Reason::Unavailable, "the map is behind"))?;
    // A rank that serves several subtrees does not know which one a mere inode is of.
    let path = Bytes::copy_from_slice(place.path.as_os_str().as_encoded_bytes());
    let request = SplitRequest { target: Some(Target { base: root, path }) };
    let mut service = SubtreeServiceClient::new(pando_rpc::channel(net, &place.address)?);
    let response = service.split(request).await.map_err(|status| Error::from_tonic(&status))?;
    Ok(SubtreeId(response.into_inner().subtree))
}

/// Merges a subtree into its parent.
///
/// Errors: those of the rank that owns it.
pub async fn merge(client: &Client, net: &Arc<dyn Net>, subtree: SubtreeId) -> Result<(), Error> {
    let map = client.map();
    let Some((_, address)) = map.owner(subtree) else {
        return Err(Error::new(Reason::Unavailable, "nobody serves it"));
    };
    let mut service = SubtreeServiceClient::new(pando_rpc::channel(net, address)?);
    let merged = service.merge(MergeRequest { subtree: subtree.0 }).await;
    merged.map(|_| ()).map_err(|status| Error::from_tonic(&status))
}

/// See the module's text.
pub(crate) struct Administrator {
    pub client: Client,
    pub net: Arc<dyn Net>,
    pub board: Arc<Board>,
    pub hosts: Hosts,
    pub dirs: Vec<String>,
    pub dice: ChaCha8Rng,
    pub draining: Option<Rank>,
    /// Whether anybody obeys pins and spreads.
    pub obeys: bool,
    pub tally: Tally,
}

impl Administrator {
    pub fn dice(seed: u64) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(seed.rotate_left(33) ^ 0xad317)
    }

    /// Makes the directories of [`APART`] two subtrees of two ranks, as far as that succeeds at once.
    pub async fn begin(&mut self) {
        for (path, rank) in APART.into_iter().zip(0..) {
            let path_made = self.client.create_dir_all(path).await;
            let apart = match path_made {
                Ok(()) => tokio::time::timeout(STEP, split(&self.client, &self.net, path)).await,
                Err(_) => continue,
            };
            if let Ok(Ok(subtree)) = apart {
                let _ = self.move_to(subtree, Rank(rank % self.hosts.ranks)).await;
            }
        }
    }

    /// Does `steps`, or fewer if the others are done before.
    pub async fn run(&mut self, steps: u64, pause: Duration) {
        for _ in 0..steps {
            tokio::time::sleep(self.dice.random_range(Duration::ZERO..pause)).await;
            if self.board.working() <= 1 {
                return;
            }
            let (what, result) = match tokio::time::timeout(STEP, self.step()).await {
                Ok((what, result)) => (what, result),
                Err(_) => ("given up", Ok(())),
            };
            match result {
                Ok(()) => self.tally.count(what),
                Err(error) => self.tally.count(&format!("{what}: {:?}", error.reason)),
            }
        }
    }

    async fn step(&mut self) -> (&'static str, Result<(), Error>) {
        match self.dice.random_range(0..if self.obeys { 15 } else { 12 }) {
            0..=3 => ("split", self.split().await),
            4..=8 => ("move", self.move_any().await),
            9..=10 => ("merge", self.merge_any().await),
            12..=13 => ("pin", self.pin_any().await),
            14 => ("spread", self.spread_any().await),
            _ => ("drain", self.drain().await),
        }
    }

    async fn split(&mut self) -> Result<(), Error> {
        let chosen = match self.dice.random_bool(0.3) {
            true => APART.choose(&mut self.dice).map(|path| (*path).to_owned()),
            false => self.dirs.choose(&mut self.dice).cloned(),
        };
        let Some(path) = chosen else { return Ok(()) };
        let owner = self.client.locate(&path).await?.rank;
        self.trouble(owner, owner);
        split(&self.client, &self.net, &path).await.map(|_| ())
    }

    fn any_rank(&mut self) -> Rank {
        Rank(self.dice.random_range(0..self.hosts.ranks))
    }

    async fn move_any(&mut self) -> Result<(), Error> {
        let map = self.client.map();
        let subtrees: Vec<_> = map.subtrees.iter().map(|(id, subtree)| (*id, subtree.owner)).collect();
        let Some((subtree, owner)) = subtrees.choose(&mut self.dice).copied() else { return Ok(()) };
        let to = self.any_rank();
        self.trouble(owner, to);
        self.move_to(subtree, to).await
    }

    async fn move_to(&self, subtree: SubtreeId, to: Rank) -> Result<(), Error> {
        let Some(mon) = self.client.mon() else { return Ok(()) };
        mon.admin().move_subtree(subtree, to, true).await.map(|_| ())
    }

    /// Pins a subtree, or takes a pin away. The balancer does the rest.
    async fn pin_any(&mut self) -> Result<(), Error> {
        let map = self.client.map();
        let subtrees: Vec<_> = map.subtrees.iter().map(|(id, subtree)| (*id, subtree.owner)).collect();
        let Some((subtree, owner)) = subtrees.choose(&mut self.dice).copied() else { return Ok(()) };
        let Some(mon) = self.client.mon().cloned() else { return Ok(()) };
        let to = self.dice.random_bool(0.5).then(|| self.any_rank());
        self.trouble(owner, to.unwrap_or(owner));
        mon.admin().pin_subtree(subtree, to).await.map(|_| ())
    }

    async fn spread_any(&mut self) -> Result<(), Error> {
        let subtrees: Vec<_> = self.client.map().subtrees.keys().copied().collect();
        let Some(subtree) = subtrees.choose(&mut self.dice).copied() else { return Ok(()) };
        let Some(mon) = self.client.mon().cloned() else { return Ok(()) };
        mon.admin().spread_subtree(subtree, self.dice.random_bool(0.5)).await.map(|_| ())
    }

    async fn merge_any(&mut self) -> Result<(), Error> {
        let map = self.client.map();
        let is_leaf = |id: SubtreeId| map.subtrees.values().all(|other| other.parent != Some(id));
        let leaves: Vec<_> = map.subtrees.iter().filter(|(id, _)| is_leaf(**id)).collect();
        let Some((child, subtree)) = leaves.choose(&mut self.dice) else { return Ok(()) };
        let Some(parent) = subtree.parent.and_then(|parent| map.subtrees.get(&parent)) else { return Ok(()) };
        if parent.owner != subtree.owner {
            self.move_to(**child, parent.owner).await?;
        }
        self.trouble(parent.owner, parent.owner);
        merge(&self.client, &self.net, **child).await
    }

    async fn drain(&mut self) -> Result<(), Error> {
        let Some(mon) = self.client.mon().cloned() else { return Ok(()) };
        match self.draining.take() {
            Some(rank) => mon.admin().drain_rank(rank, false).await.map(|_| ()),
            None => {
                let rank = self.any_rank();
                self.draining = Some(rank);
                mon.admin().drain_rank(rank, true).await.map(|_| ())
            }
        }
    }

    /// Perhaps something breaks in the middle of what begins now, at one of the two who do it, or at a mon.
    fn trouble(&mut self, from: Rank, to: Rank) {
        if !self.dice.random_bool(0.5) {
            return;
        }
        let delay = Duration::from_millis(self.dice.random_range(TROUBLE_MILLIS));
        let length = Duration::from_millis(self.dice.random_range(TROUBLE_LENGTH_MILLIS));
        let window = self.trouble_at(format!("mds-{}", from.0), format!("mds-{}", to.0), length);
        self.board.order(delay, window);
    }

    fn trouble_at(&mut self, from: String, to: String, length: Duration) -> Window {
        let mon = format!("mon-{}", self.dice.random_range(1..=self.hosts.mons));
        let osd = format!("osd-{}", self.dice.random_range(1..=self.hosts.osds));
        let dice = &mut self.dice;
        match dice.random_range(0..12) {
            10 => faults::freeze(mon, length),
            11 => faults::freeze(osd, length),
            0 => faults::crash(from, length),
            1 => faults::crash(to, length),
            2 => faults::crash(mon, length),
            3 | 4 => faults::freeze(from, length),
            5 => faults::freeze(to, length),
            6 => faults::between((from, osd), length, dice),
            7 if from != to => faults::between((from, to), length, dice),
            8 => faults::between((to, mon), length, dice),
            _ => faults::between((from, mon), length, dice),
        }
    }
}
