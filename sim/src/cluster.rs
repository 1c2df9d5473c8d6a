//! A simulated cluster: three mons, three OSDs, one rank, and clients with a load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pando_client::Client;
use pando_osd::engine::Engine;
use pando_osd::engine::memory::MemoryEngine;
use pando_rpc::{Env, Shutdown, TokioClock};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use turmoil::Sim;

use crate::disk::SimDisk;
use crate::faults::{Fault, Schedule};
use crate::load::{Load, Tally};
use crate::net::SimNet;

const MONS: u64 = 3;
const OSDS: u64 = 3;
const MON_PORT: u16 = 7100;
const DAEMON_PORT: u16 = 7200;
const ENGINE_BYTES: u64 = 1 << 30;
/// Wall clock at the start of every run.
const WALL_START_NANOS: i64 = 1_700_000_000_000_000_000;
/// A call gives up after this long: longer than any fault lasts, so that outcomes are nearly always known.
const CALL_DEADLINE: Duration = Duration::from_secs(90);

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Clients, each with its own tree.
    pub clients: u64,
    /// Operations of each.
    pub steps: u64,
    /// Faults while they run.
    pub faults: u32,
    /// Longest virtual time.
    pub limit: Duration,
}

impl Plan {
    /// A short run with some of every fault.
    pub fn short(seed: u64) -> Self {
        Self { seed, clients: 2, steps: 150, faults: 4, limit: Duration::from_secs(600) }
    }
}

/// What came of a run. Two runs of one plan are equal to the last bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What each client did.
    pub tallies: Vec<Tally>,
    /// Virtual time it took.
    pub elapsed: Duration,
    /// Faults as they were injected.
    pub faults: Vec<Fault>,
}

struct Shared {
    mon_disks: Vec<SimDisk>,
    engines: Vec<Arc<dyn Engine>>,
    tallies: Mutex<Vec<Option<Tally>>>,
    /// Counts process starts: a boot id each.
    boots: AtomicU64,
}

/// One run at a time in a process: see [`align_task_ids`].
static RUNNING: Mutex<()> = Mutex::new(());

/// Runs a plan on a fresh thread of its own (tokio's and turmoil's thread-locals start afresh).
///
/// Errors: what a client found wrong, with the seed to repeat it.
pub fn run(plan: Plan) -> Result<Outcome, String> {
    let _alone = RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seed = plan.seed;
    let thread = std::thread::Builder::new().name(format!("sim-{seed}")).stack_size(8 << 20);
    let joined = thread.spawn(move || run_here(&plan)).map_err(|error| error.to_string())?.join();
    let outcome = joined.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    });
    outcome.map_err(|error| format!("{error}\nrepeat it with PANDO_SIM_SEED={seed} cargo test -p pando-sim"))
}

fn run_here(plan: &Plan) -> Result<Outcome, String> {
    align_task_ids();
    let mut dice = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut builder = turmoil::Builder::new();
    builder
        .rng_seed(plan.seed)
        .epoch(std::time::UNIX_EPOCH + Duration::from_nanos(WALL_START_NANOS as u64))
        .simulation_duration(plan.limit)
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_micros(100))
        .max_message_latency(Duration::from_millis(dice.random_range(2..20)))
        .tcp_capacity(100_000);
    let mut sim = builder.build();
    let shared = Arc::new(Shared {
        mon_disks: (0..MONS).map(|mon| SimDisk::new(plan.seed.wrapping_add(mon))).collect(),
        engines: (0..OSDS).map(|_| Arc::new(MemoryEngine::new(ENGINE_BYTES)) as Arc<dyn Engine>).collect(),
        tallies: Mutex::new(vec![None; plan.clients as usize]),
        boots: AtomicU64::new(plan.seed << 16),
    });
    for mon in 1..=MONS {
        add_mon(&mut sim, &shared, plan.seed, mon);
    }
    for osd in 1..=OSDS {
        add_osd(&mut sim, &shared, osd);
    }
    add_rank(&mut sim, &shared);
    for client in 0..plan.clients {
        add_client(&mut sim, &shared, plan, client);
    }
    let faults = drive(&mut sim, &shared, plan, &mut dice)?;
    let tallies = shared.tallies.lock().map_err(|error| error.to_string())?.clone();
    let tallies = tallies.into_iter().collect::<Option<Vec<_>>>().ok_or("a client ended without a tally")?;
    Ok(Outcome { tallies, elapsed: sim.elapsed(), faults })
}

fn drive(sim: &mut Sim<'_>, shared: &Shared, plan: &Plan, dice: &mut ChaCha8Rng) -> Result<Vec<Fault>, String> {
    let mut schedule = Schedule::new(plan.faults, dice);
    loop {
        for fault in schedule.due(sim.elapsed()) {
            if let Fault::Crash(host) = &fault
                && let Some(mon) = host.strip_prefix("mon-").and_then(|number| number.parse::<usize>().ok())
            {
                shared.mon_disks[mon - 1].power_cut();
            }
            fault.apply(sim);
        }
        match sim.step() {
            Ok(true) => return Ok(schedule.done()),
            Ok(false) => {}
            Err(error) => return Err(format!("after {:?} and {:?}: {error}", sim.elapsed(), schedule.done())),
        }
    }
}

fn env() -> Env {
    Env {
        net: Arc::new(SimNet::new(DAEMON_PORT)),
        clock: Arc::new(TokioClock::new(WALL_START_NANOS)),
        shutdown: Shutdown::default(),
    }
}

fn mons() -> Vec<String> {
    (1..=MONS).map(|mon| format!("mon-{mon}:{MON_PORT}")).collect()
}

fn loopback(port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port))
}

fn add_mon(sim: &mut Sim<'_>, shared: &Arc<Shared>, seed: u64, id: u64) {
    let shared = Arc::clone(shared);
    sim.host(format!("mon-{id}"), move || {
        let disk = shared.mon_disks[id as usize - 1].clone();
        async move {
            let storage = pando_mon::Storage::Backend(Box::new(disk.backend()));
            let mut config = pando_mon::Config::new(id, loopback(MON_PORT), storage);
            config.peers = (1..=MONS).zip(mons()).collect();
            config.expected_osds = OSDS as u32;
            config.metadata_pool = pando_mon::PoolSpec::new(3, 4);
            config.data_pool = pando_mon::PoolSpec::new(3, 4);
            config.election_seed = Some(seed.wrapping_mul(31).wrapping_add(id));
            config.compact_every = 50;
            let handle = pando_mon::start(config, env()).await?;
            handle.join().await;
            Ok(())
        }
    });
}

fn add_osd(sim: &mut Sim<'_>, shared: &Arc<Shared>, osd: u64) {
    let shared = Arc::clone(shared);
    sim.host(format!("osd-{osd}"), move || {
        let engine = Arc::clone(&shared.engines[osd as usize - 1]);
        async move {
            let storage = pando_osd::Storage::Engine { engine, uuid: [osd as u8; 16] };
            let mut config = pando_osd::Config::new(mons(), loopback(DAEMON_PORT), storage);
            config.advertise = Some(format!("osd-{osd}:{DAEMON_PORT}"));
            config.host = format!("osd-{osd}");
            config.inline_io = true;
            let handle = pando_osd::start(config, env()).await?;
            handle.join().await;
            Ok(())
        }
    });
}

fn add_rank(sim: &mut Sim<'_>, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    sim.host("mds-0", move || {
        let boot = shared.boots.fetch_add(1, Ordering::Relaxed);
        async move {
            let config = pando_mds::Config {
                mons: mons(),
                listen: loopback(DAEMON_PORT),
                advertise: format!("mds-0:{DAEMON_PORT}"),
                cache_bytes: 1 << 20,
                boot_seed: Some(boot),
                ..pando_mds::Config::default()
            };
            let handle = pando_mds::start(config, env()).await?;
            handle.join().await;
            Ok(())
        }
    });
}

fn add_client(sim: &mut Sim<'_>, shared: &Arc<Shared>, plan: &Plan, number: u64) {
    let (shared, seed, steps) = (Arc::clone(shared), plan.seed, plan.steps);
    sim.client(format!("client-{number}"), async move {
        let Env { net, clock, .. } = env();
        let client = connect(net, clock).await?;
        let mut load = Load::new(client.clone(), number, seed);
        load.run(steps).await?;
        if let Ok(mut tallies) = shared.tallies.lock() {
            tallies[number as usize] = Some(load.tally.clone());
        }
        client.close().await?;
        Ok(())
    });
}

/// Connects; the cluster may still be coming up.
async fn connect(net: Arc<dyn pando_rpc::Net>, clock: Arc<dyn pando_rpc::Clock>) -> Result<Client, String> {
    let mut last = String::new();
    for _ in 0..20 {
        let builder = Client::builder(mons()).net(Arc::clone(&net)).clock(Arc::clone(&clock));
        match builder.deadline(CALL_DEADLINE).description("sim").connect().await {
            Ok(client) => return Ok(client),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Err(format!("no cluster to connect to: {last}"))
}

/// tokio keeps its tasks in shards by a process-wide id, and drops them shard by shard when a host crashes. Spawns
/// idle tasks until the next id starts a round, so that a second run in this process drops in the same order.
fn align_task_ids() {
    const ROUND: u64 = 64;
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    runtime.block_on(async {
        for _ in 0..2 * ROUND {
            let id = tokio::spawn(async { tokio::task::id().to_string() }).await;
            if id.ok().and_then(|id| id.parse::<u64>().ok()).is_none_or(|id| id % ROUND == 0) {
                return;
            }
        }
    });
}
