//! How each kind of daemon is configured here.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use pando_osd::engine::EngineOptions;
use pando_osd::engine::commit::StatsReader;
use pando_proto::Error;

use crate::Options;
use crate::daemon::{Daemon, Joined};

/// A daemon on its way.
pub(crate) type Starting = Pin<Box<dyn Future<Output = Result<Daemon, Error>> + Send>>;

/// Where each OSD's commits can be read, by its number here.
pub(crate) type OsdStats = Arc<Mutex<BTreeMap<u32, StatsReader>>>;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub(crate) fn mon(
    mon: u32,
    peers: &[SocketAddr],
    dir: PathBuf,
    options: &Options,
    cluster_id: Option<[u8; 16]>,
) -> Starting {
    let id = u64::from(mon) + 1;
    let mut config = pando_mon::Config::new(id, peers[mon as usize], pando_mon::Storage::Dir(dir));
    config.peers = (1..).zip(peers).map(|(id, address)| (id, address.to_string())).collect();
    config.cluster_id = cluster_id;
    config.expected_osds = options.osds;
    config.metadata_pool = pando_mon::PoolSpec::new(options.replicas, options.metadata_pgs);
    config.data_pool = pando_mon::PoolSpec::new(options.replicas, options.data_pgs);
    Box::pin(Daemon::start(format!("mon.{mon}"), |env| async move {
        let handle = pando_mon::start(config, env).await?;
        Ok((handle.address(), Box::pin(handle.join()) as Joined))
    }))
}

pub(crate) fn osd(osd: u32, mons: &[String], path: PathBuf, options: &Options, stats: OsdStats) -> Starting {
    let storage = pando_osd::Storage::Directory { path, engine: options.engine, options: EngineOptions::default() };
    let mut config = pando_osd::Config::new(mons.to_vec(), LOOPBACK, storage);
    // One machine, yet a host each: replicas go to different OSDs.
    config.host = format!("host-{osd}");
    Box::pin(Daemon::start(format!("osd.{osd}"), move |env| async move {
        let handle = pando_osd::start(config, env).await?;
        if let Ok(mut stats) = stats.lock() {
            stats.insert(osd, handle.commit_stats());
        }
        Ok((handle.address(), Box::pin(handle.join()) as Joined))
    }))
}

pub(crate) fn mds(rank: u32, mons: &[String], options: &Options) -> Starting {
    let config = pando_mds::Config {
        mons: mons.to_vec(),
        listen: LOOPBACK,
        rank,
        cache_bytes: options.mds_cache_bytes,
        ..pando_mds::Config::default()
    };
    Box::pin(Daemon::start(format!("mds.{rank}"), |env| async move {
        let handle = pando_mds::start(config, env).await?;
        Ok((handle.address(), Box::pin(handle.join()) as Joined))
    }))
}
