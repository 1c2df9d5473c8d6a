//! A simulated cluster: three mons, three OSDs, several ranks, and clients with a load.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use pando_client::Client;
use pando_cluster_map::settings;
use pando_rpc::Env;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use turmoil::Sim;

use crate::admin::Administrator;
use crate::board::{Board, lock};
use crate::faults::{Fault, Hosts, MORTAL, Schedule};
use crate::hot::{ACROSS, HOT, Hot};
use crate::load::{DIRS, Load, SCRATCH, Tally, WANDERING};
use crate::mortal::{self, Mortal};
use crate::process::{Processes, WALL_START_NANOS};
use crate::twice::twice;
use crate::verify::verify;

pub(crate) const MONS: u64 = 3;
pub(crate) const OSDS: u64 = 3;
const MON_PORT: u16 = 7100;
const DAEMON_PORT: u16 = 7200;
/// How long each host runs before the next one does. A shorter one costs more and finds no more; with a longer one all
/// takes more of the simulated time, and costs as much.
const TICK: Duration = Duration::from_millis(2);
/// A call gives up after this long: longer than any fault lasts, so that outcomes are nearly always known.
const CALL_DEADLINE: Duration = Duration::from_secs(90);
/// The same of a client that is to give up now and then, for answers that never come.
const HASTY_DEADLINE: Duration = Duration::from_secs(3);
/// Who is silent for this long is evicted: longer than faults keep a client and a rank apart.
const SESSION_TIMEOUT_MILLIS: u64 = 25_000;

/// The balancer looks so often,
const BALANCER_INTERVAL_MILLIS: u64 = 400;
/// and sees too much load in what a few simulated clients do.
const SATURATION_PERMILLE: u64 = 100;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Ranks.
    pub ranks: u32,
    /// Clients, each with its own tree.
    pub clients: u64,
    /// Clients that meet on the same names.
    pub hot_clients: u64,
    /// Operations of each.
    pub steps: u64,
    /// Faults while they run, beside those that come with the steps of the administrator.
    pub faults: u32,
    /// Steps of the administrator.
    pub moves: u64,
    /// Longest pause between two of them.
    pub pause: Duration,
    /// What the balancer may do: a value of [`settings::BALANCER_MODE`].
    pub balancer: u64,
    /// Longest virtual time.
    pub limit: Duration,
}

impl Plan {
    /// A short run with some of every fault.
    pub fn short(seed: u64) -> Self {
        Self {
            seed,
            ranks: 3,
            clients: 2,
            hot_clients: 2,
            steps: 100,
            faults: 4,
            moves: 20,
            pause: Duration::from_millis(1500),
            balancer: match seed % 6 {
                0 | 3 => settings::BALANCER_AUTO,
                1 => settings::BALANCER_MANUAL,
                _ => settings::BALANCER_OFF,
            },
            limit: Duration::from_secs(900),
        }
    }

    /// More clients, and hardly a moment in which nothing moves and nothing is broken.
    pub fn storm(seed: u64) -> Self {
        Self {
            hot_clients: 3,
            steps: 150,
            faults: 12,
            moves: 80,
            pause: Duration::from_millis(400),
            ..Self::short(seed)
        }
    }

    /// Every fourth seed is a storm.
    pub fn of(seed: u64) -> Self {
        if seed.is_multiple_of(4) { Self::storm(seed) } else { Self::short(seed) }
    }

    fn hosts(&self) -> Hosts {
        Hosts { mons: MONS, osds: OSDS, ranks: self.ranks, clients: self.clients + self.hot_clients }
    }
}

/// What came of a run. Two runs of one plan are equal to the last bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What each client, and the administrator, did.
    pub tallies: BTreeMap<String, Tally>,
    /// Virtual time it took.
    pub elapsed: Duration,
    /// Faults as they were injected.
    pub faults: Vec<Fault>,
    /// What those saw who met.
    pub histories: BTreeMap<String, Vec<crate::history::Event>>,
    /// How many of them could not be judged.
    pub undecided: u64,
    /// A client died that had files open without a name.
    pub bereft: bool,
}

impl Outcome {
    /// Operations that were done, or refused for good reason.
    pub fn operations(&self) -> u64 {
        self.tallies.values().flat_map(|tally| tally.done.values()).sum()
    }

    /// Of those on which several clients meet: how many concerned names in two subtrees (R18).
    pub fn across(&self) -> u64 {
        self.tallies.values().filter_map(|tally| tally.done.get(ACROSS)).sum()
    }
}

/// One run at a time in a process: see [`align_task_ids`].
static RUNNING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Panics of tasks on this thread, which tokio swallows.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // At the end of a thread there is nowhere to note it.
            let _ = PANICS.try_with(|panics| panics.borrow_mut().push(panic.to_string()));
            before(panic);
        }));
    });
}

/// Runs a simulation on a fresh thread of its own (tokio's and turmoil's thread-locals start afresh).
pub(crate) fn on_a_fresh_thread<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let _alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    note_panics();
    let thread = std::thread::Builder::new().name(name).stack_size(8 << 20);
    let run = move || {
        align_task_ids();
        let outcome = run();
        match PANICS.take().first() {
            Some(panic) => Err(format!("a task panicked: {panic}")),
            None => outcome,
        }
    };
    let joined = thread.spawn(run).map_err(|error| error.to_string())?.join();
    joined.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

/// Runs a plan.
///
/// Errors: what a client or a check found wrong, with the seed to repeat it.
pub fn run(plan: Plan) -> Result<Outcome, String> {
    let seed = plan.seed;
    let outcome = on_a_fresh_thread(format!("sim-{seed}"), move || run_here(&plan));
    outcome.map_err(|error| format!("seed {seed}: {error}"))
}

/// A cluster that is not yet running.
pub(crate) struct Cluster {
    pub sim: Sim<'static>,
    pub board: Arc<Board>,
    pub schedule: Schedule,
    processes: Rc<Processes>,
}

impl Cluster {
    /// Hosts run in turn, each for a `tick`.
    pub fn new(seed: u64, limit: Duration, tick: Duration, latency: Duration, hosts: Hosts, board: Board) -> Self {
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .epoch(std::time::UNIX_EPOCH + Duration::from_nanos(WALL_START_NANOS as u64))
            .simulation_duration(limit)
            .tick_duration(tick)
            .min_message_latency(Duration::from_micros(100))
            .max_message_latency(latency)
            .tcp_capacity(100_000)
            .build();
        let (board, schedule) = (Arc::new(board), Schedule::default());
        let mut cluster = Self { sim, board, schedule, processes: Rc::new(Processes::new(seed, tick)) };
        for mon in 1..=MONS {
            add_mon(&mut cluster, seed, mon);
        }
        for osd in 1..=OSDS {
            add_osd(&mut cluster, osd);
        }
        for rank in 0..hosts.ranks {
            add_rank(&mut cluster, rank);
        }
        cluster
    }

    /// A host that may crash and start again, whenever the run ends.
    fn host<F>(&mut self, host: String, main: impl Fn(Env) -> F + Clone + 'static)
    where
        F: Future<Output = turmoil::Result> + 'static,
    {
        let (processes, gate) = (Rc::clone(&self.processes), self.board.gate(&host));
        self.sim.host(host.clone(), move || Rc::clone(&processes).run(host.clone(), gate.clone(), main.clone()));
    }

    /// A host without whose end the run has none.
    pub fn client<F>(&mut self, host: &str, main: impl FnOnce(Env) -> F + 'static)
    where
        F: Future<Output = turmoil::Result> + 'static,
    {
        let (processes, gate) = (Rc::clone(&self.processes), self.board.gate(host));
        self.sim.client(host, processes.run(host.to_owned(), gate, main));
    }

    /// Runs until all clients have ended.
    pub fn drive(&mut self) -> Result<(), String> {
        loop {
            for (delay, window) in self.board.take_orders() {
                self.schedule.add(self.sim.elapsed() + delay, window);
            }
            if let Some(window) = self.board.burnt() {
                self.schedule.add(self.sim.elapsed(), window);
            }
            self.schedule.run(&mut self.sim, &self.processes, &self.board);
            if self.board.working() == 0 && !self.board.is_healed() {
                self.schedule.heal(&mut self.sim, &self.processes, &self.board);
                self.board.heal();
            }
            match self.sim.step() {
                Ok(true) => return Ok(()),
                Ok(false) => self.processes.step(),
                Err(error) => {
                    let (at, faults) = (self.sim.elapsed(), self.schedule.done());
                    return Err(format!("after {at:?} and {faults:?}: {error}"));
                }
            }
        }
    }
}

fn run_here(plan: &Plan) -> Result<Outcome, String> {
    let mut dice = ChaCha8Rng::seed_from_u64(plan.seed);
    let hosts = plan.hosts();
    let latency = Duration::from_millis(dice.random_range(2..20));
    let names = host_names(&hosts, &["admin", "verifier", MORTAL]);
    let workers = hosts.clients + 1;
    let mut board = Board::new(plan.seed, MONS, OSDS, &names, workers, hosts.clients);
    board.repeats = Some(plan.seed);
    let mut cluster = Cluster::new(plan.seed, plan.limit, TICK, latency, hosts, board);
    cluster.schedule = Schedule::new(plan.faults, &hosts, &mut dice);
    for client in 0..plan.clients {
        add_load(&mut cluster, plan, client);
    }
    for client in plan.clients..hosts.clients {
        add_hot(&mut cluster, plan, client);
    }
    add_mortal(&mut cluster, plan.seed);
    add_administrator(&mut cluster, plan);
    add_verifier(&mut cluster);
    cluster.drive()?;
    let tallies = lock(&cluster.board.tallies).clone();
    let histories = lock(&cluster.board.histories).clone();
    let undecided = cluster.board.undecided.load(Ordering::Relaxed);
    let (elapsed, faults) = (cluster.sim.elapsed(), cluster.schedule.done());
    let bereft = cluster.board.was_said(mortal::HOLDS);
    Ok(Outcome { tallies, elapsed, faults, histories, undecided, bereft })
}

/// Names of all hosts.
pub(crate) fn host_names(hosts: &Hosts, others: &[&str]) -> Vec<String> {
    let mons = (1..=hosts.mons).map(|mon| format!("mon-{mon}"));
    let osds = (1..=hosts.osds).map(|osd| format!("osd-{osd}"));
    let ranks = (0..hosts.ranks).map(|rank| format!("mds-{rank}"));
    let clients = (0..hosts.clients).map(|client| format!("client-{client}"));
    mons.chain(osds).chain(ranks).chain(clients).chain(others.iter().map(|other| (*other).to_owned())).collect()
}

pub(crate) fn mons() -> Vec<String> {
    (1..=MONS).map(|mon| format!("mon-{mon}:{MON_PORT}")).collect()
}

fn loopback(port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port))
}

fn add_mon(cluster: &mut Cluster, seed: u64, id: u64) {
    let board = Arc::clone(&cluster.board);
    cluster.host(format!("mon-{id}"), move |env| {
        let disk = board.mon_disks[id as usize - 1].clone();
        let storage = pando_mon::Storage::Backend(Box::new(disk.backend()));
        let mut config = pando_mon::Config::new(id, loopback(MON_PORT), storage);
        config.peers = (1..=MONS).zip(mons()).collect();
        config.expected_osds = OSDS as u32;
        config.metadata_pool = pando_mon::PoolSpec::new(3, 4);
        config.data_pool = pando_mon::PoolSpec::new(3, 4);
        config.election_seed = Some(seed.wrapping_mul(31).wrapping_add(id));
        config.compact_every = 50;
        async move {
            pando_mon::start(config, env).await?.join().await;
            Ok(())
        }
    });
}

fn add_osd(cluster: &mut Cluster, osd: u64) {
    let (board, host) = (Arc::clone(&cluster.board), format!("osd-{osd}"));
    cluster.host(host.clone(), move |env| {
        let engine = Arc::clone(&board.engines[osd as usize - 1]);
        let storage = pando_osd::Storage::Engine { engine, uuid: [osd as u8; 16] };
        let mut config = pando_osd::Config::new(mons(), loopback(DAEMON_PORT), storage);
        config.advertise = Some(format!("{host}:{DAEMON_PORT}"));
        config.host.clone_from(&host);
        config.inline_io = true;
        async move {
            pando_osd::start(config, env).await?.join().await;
            Ok(())
        }
    });
}

fn add_rank(cluster: &mut Cluster, rank: u32) {
    let (board, host) = (Arc::clone(&cluster.board), format!("mds-{rank}"));
    cluster.host(host.clone(), move |env| {
        let config = pando_mds::Config {
            mons: mons(),
            listen: loopback(DAEMON_PORT),
            advertise: format!("{host}:{DAEMON_PORT}"),
            rank,
            cache_bytes: 1 << 20,
            boot_seed: Some(board.boot()),
            ..pando_mds::Config::default()
        };
        let repeats = board.repeats.map(|seed| seed ^ board.boot().rotate_left(40));
        let between = move |outside| match repeats {
            Some(seed) => twice(outside, seed),
            None => outside,
        };
        async move {
            loop {
                match pando_mds::rank::start_with(config.clone(), env.clone(), between).await {
                    Ok(handle) => {
                        handle.join().await;
                        return Ok(());
                    }
                    // A supervisor would start it again.
                    Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(200)).await,
                    Err(error) => panic!("a rank does not start: {error}"),
                }
            }
        }
    });
}

fn add_load(cluster: &mut Cluster, plan: &Plan, number: u64) {
    let (board, seed, steps, host) = (Arc::clone(&cluster.board), plan.seed, plan.steps, format!("client-{number}"));
    cluster.client(&host.clone(), move |env| async move {
        let client = connect(&env, CALL_DEADLINE).await?;
        let mut load = Load::new(client.clone(), number, seed);
        load.run(steps).await?;
        board.worked();
        board.healed().await;
        let files = load.look_at_all().await?;
        lock(&board.files).extend(files);
        lock(&board.tallies).insert(host, load.tally.clone());
        drop(load);
        client.close().await?;
        board.checked();
        Ok(())
    });
}

fn add_hot(cluster: &mut Cluster, plan: &Plan, number: u64) {
    let (board, seed, steps, host) = (Arc::clone(&cluster.board), plan.seed, plan.steps, format!("client-{number}"));
    let last = number + 1 == plan.hosts().clients;
    cluster.client(&host.clone(), move |env| async move {
        let client = connect(&env, CALL_DEADLINE).await?;
        // The last one is in a hurry.
        let hasty = if last { HASTY_DEADLINE } else { CALL_DEADLINE };
        let mut hot = Hot::new(client.with_deadline(hasty), number, seed, Arc::clone(&board));
        hot.run(steps).await?;
        board.worked();
        board.healed().await;
        hot.look_at_all().await?;
        lock(&board.tallies).insert(host, hot.tally.clone());
        drop(hot);
        client.close().await?;
        board.checked();
        Ok(())
    });
}

fn add_mortal(cluster: &mut Cluster, seed: u64) {
    let board = Arc::clone(&cluster.board);
    cluster.host(MORTAL.to_owned(), move |env| {
        let board = Arc::clone(&board);
        async move {
            let client = connect_as(mortal::DESCRIPTION, &env, HASTY_DEADLINE).await?;
            Mortal::new(client, seed, &board).live().await;
            Ok(())
        }
    });
}

fn add_administrator(cluster: &mut Cluster, plan: &Plan) {
    let (board, plan) = (Arc::clone(&cluster.board), plan.clone());
    cluster.client("admin", move |env| async move {
        let client = connect(&env, CALL_DEADLINE).await?;
        if let Some(mon) = client.mon() {
            let set = [
                (settings::BALANCER_MODE, plan.balancer),
                (settings::BALANCER_INTERVAL_MILLIS, BALANCER_INTERVAL_MILLIS),
                (settings::BALANCER_SATURATION_PERMILLE, SATURATION_PERMILLE),
                (settings::SESSION_TIMEOUT_MILLIS, SESSION_TIMEOUT_MILLIS),
            ];
            for (name, value) in set {
                mon.admin().set_setting(name, &value.to_string()).await.map_err(|error| error.to_string())?;
            }
        }
        let loads = (0..plan.clients).flat_map(|number| {
            let below = DIRS.iter().chain([&SCRATCH]).chain(&WANDERING).map(move |dir| format!("/load-{number}/{dir}"));
            std::iter::once(format!("/load-{number}")).chain(below)
        });
        let mut administrator = Administrator {
            client: client.with_deadline(Duration::from_secs(10)),
            net: env.net,
            board: Arc::clone(&board),
            hosts: plan.hosts(),
            dirs: loads.chain(HOT.map(str::to_owned)).chain([mortal::DIR.to_owned()]).collect(),
            dice: Administrator::dice(plan.seed),
            draining: None,
            obeys: plan.balancer != settings::BALANCER_OFF,
            tally: Tally::default(),
        };
        administrator.begin().await;
        administrator.run(plan.moves, plan.pause).await;
        board.worked();
        board.healed().await;
        lock(&board.tallies).insert("admin".to_owned(), administrator.tally.clone());
        drop(administrator);
        client.close().await?;
        Ok(())
    });
}

fn add_verifier(cluster: &mut Cluster) {
    let board = Arc::clone(&cluster.board);
    cluster.client("verifier", move |env| async move {
        board.all_checked().await;
        let client = connect(&env, CALL_DEADLINE).await?;
        verify(&client, &board).await?;
        client.close().await?;
        Ok(())
    });
}

/// Connects a process; the cluster may still be coming up.
pub(crate) async fn connect(env: &Env, deadline: Duration) -> Result<Client, String> {
    connect_as("sim", env, deadline).await
}

async fn connect_as(description: &str, env: &Env, deadline: Duration) -> Result<Client, String> {
    let mut last = String::new();
    for _ in 0..20 {
        let builder = Client::builder(mons()).net(Arc::clone(&env.net)).clock(Arc::clone(&env.clock));
        match builder.deadline(deadline).description(description).connect().await {
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
