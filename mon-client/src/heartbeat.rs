//! Renewing a lease (R13).

use std::sync::Arc;
use std::time::Duration;

use pando_cluster_map::settings;
use pando_proto::{Error, Reason, mon};
use pando_rpc::{Env, Lease};

use crate::client::service;
use crate::{Daemon, MonClient};

/// Wait before the next try after a failure.
const RETRY: Duration = Duration::from_millis(50);
/// After the mons said that they do not know this daemon: it was registered with others, or they lost their state.
const UNKNOWN_RETRY: Duration = Duration::from_secs(1);
/// Wait for a map that is on its way.
const MAP_PAUSE: Duration = Duration::from_millis(5);
/// A try that takes longer than this is given up for the next mon.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// What a heartbeat tells beside being alive.
pub(crate) enum Report {
    /// An OSD: total and used bytes.
    Usage(Arc<dyn Fn() -> (u64, u64) + Send + Sync>),
    /// A rank: its load. What the balancer asks of it comes back.
    Load {
        load: Arc<dyn Fn() -> mon::RankLoad + Send + Sync>,
        hints: Arc<dyn Fn(Vec<mon::SplitRequest>, Vec<u64>) + Send + Sync>,
    },
}

struct Heart {
    client: MonClient,
    daemon: Daemon,
    incarnation: u64,
    lease: Arc<Lease>,
    env: Env,
    report: Report,
}

pub(crate) fn spawn(client: MonClient, daemon: Daemon, incarnation: u64, lease: Arc<Lease>, env: Env, report: Report) {
    let heart = Heart { client, daemon, incarnation, lease, env, report };
    tokio::spawn(async move {
        let shutdown = heart.env.shutdown.clone();
        tokio::select! {
            () = shutdown.stopped() => {}
            () = heart.beat() => {}
        }
    });
}

impl Heart {
    async fn beat(self) {
        // Until the first answer names the true length.
        let mut length = Duration::from_millis(settings::number(settings::LEASE_MILLIS, None));
        // Mons in a row that are of another cluster.
        let mut foreign = 0;
        loop {
            let outcome = self.once(length).await;
            let is_foreign = outcome.as_ref().is_err_and(|error| error.reason == Reason::WrongCluster);
            foreign = if is_foreign { foreign + 1 } else { 0 };
            match outcome {
                Ok(granted) => {
                    length = granted;
                    tokio::time::sleep(length / 4).await;
                }
                Err(error) if error.reason == Reason::StaleEpoch => {
                    tracing::error!(daemon = %self.daemon, %error, "another process has taken over: stopping");
                    self.env.shutdown.stop();
                    return;
                }
                // Each try goes to the next one. If none is left its cluster is gone for good.
                Err(error) if is_foreign && foreign >= self.client.targets().count() => {
                    tracing::error!(daemon = %self.daemon, %error, "stopping");
                    self.env.shutdown.stop();
                    return;
                }
                Err(error) if error.reason == Reason::UnknownId => {
                    tracing::error!(daemon = %self.daemon, %error, "no lease");
                    tokio::time::sleep(UNKNOWN_RETRY).await;
                }
                Err(error) => {
                    tracing::debug!(daemon = %self.daemon, %error, "heartbeat failed");
                    tokio::time::sleep(error.retry_after.unwrap_or(RETRY).min(length / 4)).await;
                }
            }
        }
    }

    async fn once(&self, length: Duration) -> Result<Duration, Error> {
        let (address, channel) = self.client.targets().current();
        let request = self.request();
        // R13: the lease counts from the sending, so that its holder always stops first.
        let sent = self.env.clock.boottime();
        let mut service = service(channel);
        let attempt = tokio::time::timeout((length / 2).min(ATTEMPT_MAX), service.heartbeat(request));
        let answered = attempt.await.unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("no answer in time")));
        let response = answered.map_err(|status| {
            let error = Error::from_tonic(&status);
            let at_once = self.client.targets().redirect(&address, &status);
            if at_once { error.retry_after(Duration::from_millis(1)) } else { error }
        })?;
        let response = response.into_inner();
        let granted = Duration::from_millis(response.lease_millis);
        self.await_map(response.map_epoch, sent, granted).await?;
        self.lease.renew(sent, granted);
        if let Report::Load { hints, .. } = &self.report
            && !(response.splits.is_empty() && response.merges.is_empty())
        {
            hints(response.splits, response.merges);
        }
        Ok(granted.max(RETRY))
    }

    /// R13, R14: this daemon may have lost what it owned while it was not heard of, and its map does not tell yet: the
    /// lease is of no use before that map is here. The same grant waits for it: a new one would only ask for a newer map,
    /// and while the map changes fast none would ever count.
    async fn await_map(&self, epoch: u64, sent: Duration, granted: Duration) -> Result<(), Error> {
        let is_behind = |seen: u64| seen != 0 && seen < epoch;
        while is_behind(self.client.seen()) {
            if self.env.clock.boottime().saturating_sub(sent) >= granted / 2 {
                let message = "the map of the time of the grant has not come";
                return Err(Error::new(Reason::Unavailable, message).retry_after(MAP_PAUSE));
            }
            tokio::time::sleep(MAP_PAUSE).await;
        }
        Ok(())
    }

    fn request(&self) -> mon::HeartbeatRequest {
        let ((total_bytes, used_bytes), load) = match &self.report {
            Report::Usage(usage) => (usage(), None),
            Report::Load { load, .. } => ((0, 0), Some(load())),
        };
        let daemon = match self.daemon {
            Daemon::Osd(osd) => mon::heartbeat_request::Daemon::OsdId(osd.0),
            Daemon::Rank(rank) => mon::heartbeat_request::Daemon::Rank(rank.0),
        };
        mon::HeartbeatRequest {
            daemon: Some(daemon),
            incarnation: self.incarnation,
            map_epoch: self.client.seen(),
            total_bytes,
            used_bytes,
            load,
        }
    }
}
