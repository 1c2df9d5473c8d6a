//! Real processes, killed with SIGKILL under load (I1, I4): what was
//! acknowledged is there afterwards, whatever else happened.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use pando_client::Client;
use pando_proto::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// How long a daemon may take to say where it serves.
const START: Duration = Duration::from_secs(60);
pub(crate) const TEST: Duration = Duration::from_secs(240);

/// A child process that never outlives the test.
pub(crate) struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// Starts `name` from the build directory and waits for its line with the address.
    fn start(name: &str, arguments: &[String]) -> Self {
        let mut child = Command::new(binary(name))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}: build the whole workspace first"));
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let address = loop {
            let line = lines.recv_timeout(START).unwrap_or_else(|_| panic!("{name} does not serve in time"));
            if let Some(address) = line.split_whitespace().last().and_then(|word| word.parse().ok()) {
                break address;
            }
        };
        Self { child, address }
    }

    pub fn kill_9(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("it was ours");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it was ours");
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        loop {
            if let Some(status) = self.child.try_wait().expect("it was ours") {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Beside the test binary's directory, where cargo puts the programs of the workspace.
fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test binary");
    test.parent().and_then(Path::parent).expect("target/<profile>/deps").join(name)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// mon, three OSDs and ranks, each a process on one directory.
pub(crate) struct Daemons {
    dir: tempfile::TempDir,
    pub mon: Process,
    pub osds: BTreeMap<u32, Process>,
    pub mds: BTreeMap<u32, Process>,
}

impl Daemons {
    pub fn start(ranks: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mon = Self::start_mon(dir.path(), "127.0.0.1:0");
        let osds = (1..=3).map(|osd| (osd, Self::start_osd(dir.path(), &mon, osd))).collect();
        let mds = (0..ranks).map(|rank| (rank, Self::start_mds(&mon, rank))).collect();
        Self { dir, mon, osds, mds }
    }

    fn start_mon(dir: &Path, listen: &str) -> Process {
        let data = dir.join("mon").display().to_string();
        let creation = ["--expected-osds", "3", "--replicas", "3", "--metadata-pgs", "4", "--data-pgs", "4"];
        let words = [&["--id", "1", "--listen", listen, "--data-dir", &data][..], &creation[..]].concat();
        Process::start("pando-mon", &strings(&words))
    }

    fn start_osd(dir: &Path, mon: &Process, osd: u32) -> Process {
        let (mons, data) = (mon.address.to_string(), dir.join(format!("osd-{osd}")).display().to_string());
        let host = format!("host-{osd}");
        Process::start("pando-osd", &strings(&["--mons", &mons, "--data-dir", &data, "--host", &host]))
    }

    fn start_mds(mon: &Process, rank: u32) -> Process {
        let (mons, rank) = (mon.address.to_string(), rank.to_string());
        Process::start("pando-mds", &strings(&["--mons", &mons, "--rank", &rank]))
    }

    /// Another process of a rank that has ended.
    pub fn start_again(&mut self, rank: u32) {
        self.mds.insert(rank, Self::start_mds(&self.mon, rank));
    }
}

/// Writes, renames and unlinks in its own directory, and keeps the list of what was acknowledged.
pub(crate) async fn load(client: Client, number: u32, operations: u32) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut acknowledged = BTreeMap::new();
    let dir = format!("/client-{number}");
    client.create_dir_all(&dir).await.expect("mkdir");
    for operation in 0..operations {
        let path = format!("{dir}/{}", operation % 23);
        let body = vec![(operation + number) as u8; if operation % 9 == 0 { 9000 } else { 700 }];
        client.write(&path, &body).await.unwrap_or_else(|error| panic!("write {path}: {error}"));
        acknowledged.insert(path.clone(), Some(body.clone()));
        if operation % 5 == 0 {
            let to = format!("{dir}/renamed-{}", operation % 7);
            client.rename(&path, &to).await.unwrap_or_else(|error| panic!("rename {path}: {error}"));
            acknowledged.insert(path.clone(), None);
            acknowledged.insert(to, Some(body));
        } else if operation % 7 == 0 {
            client.remove_file(&path).await.unwrap_or_else(|error| panic!("unlink {path}: {error}"));
            acknowledged.insert(path, None);
        }
    }
    acknowledged
}

pub(crate) async fn check(client: &Client, acknowledged: &BTreeMap<String, Option<Vec<u8>>>) {
    for (path, content) in acknowledged {
        match (client.read(path).await, content) {
            (Ok(data), Some(content)) => assert!(data == content[..], "{path}: other bytes than acknowledged"),
            (Err(error), None) => assert_eq!(error.errno(), Errno::ENOENT, "{path}"),
            (Ok(_), None) => panic!("{path} is there, its removal was acknowledged"),
            (Err(error), Some(_)) => panic!("{path} is missing: {error}"),
        }
    }
}

pub(crate) async fn connect(mon: SocketAddr) -> Client {
    Client::builder(mon.to_string()).deadline(Duration::from_secs(120)).connect().await.expect("a client connects")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_osd_and_a_rank_are_killed_in_the_middle_of_a_load() {
    let test = async {
        let mut daemons = Daemons::start(1);
        let client = connect(daemons.mon.address).await;
        let loads: Vec<_> = (0..4).map(|number| tokio::spawn(load(client.clone(), number, 250))).collect();
        while client.try_exists("/client-0/5").await.is_ok_and(|there| !there) {}
        daemons.osds.get_mut(&2).expect("started").kill_9();
        while client.try_exists("/client-0/renamed-2").await.is_ok_and(|there| !there) {}
        daemons.mds.get_mut(&0).expect("started").kill_9();
        daemons.start_again(0);
        let again = Daemons::start_osd(daemons.dir.path(), &daemons.mon, 2);
        daemons.osds.insert(2, again);
        for running in loads {
            check(&client, &running.await.expect("the load ends well")).await;
        }
    };
    tokio::time::timeout(TEST, test).await.expect("the test ends in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_process_is_killed_and_started_again() {
    let test = async {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data").display().to_string();
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
        let up = strings(&["up", "--data", &data, "--mon-port", &port.port().to_string(), "--json"]);
        let mut pando = Whole::start(&up);
        let mut acknowledged = BTreeMap::new();
        for round in 0..3 {
            let client = connect(port).await;
            let loads: Vec<_> =
                (0..4).map(|number| tokio::spawn(load(client.clone(), round * 10 + number, 40))).collect();
            // A writer that is cut off in the middle: nothing of it counts but what it was told.
            let (told, cut) = tokio::sync::oneshot::channel();
            let cut_off = tokio::spawn(until_cut(connect(port).await, round, told));
            for running in loads {
                acknowledged.extend(running.await.expect("the load ends well"));
            }
            cut.await.expect("it has begun");
            pando.0.kill().expect("SIGKILL");
            pando.0.wait().expect("it was ours");
            acknowledged.extend(cut_off.await.expect("it ends by its deadline"));
            pando = Whole::start(&up);
            check(&connect(port).await, &acknowledged).await;
        }
    };
    tokio::time::timeout(TEST, test).await.expect("the test ends in time");
}

/// Writes until the cluster is gone; says once when the first write is done.
async fn until_cut(
    client: Client,
    round: u32,
    begun: tokio::sync::oneshot::Sender<()>,
) -> BTreeMap<String, Option<Vec<u8>>> {
    let client = client.with_deadline(Duration::from_millis(500));
    let (mut told, mut begun) = (BTreeMap::new(), Some(begun));
    for number in 0..100_000u32 {
        let (path, body) = (format!("/cut-{round}-{number}"), vec![number as u8; 300]);
        if client.write(&path, &body).await.is_err() {
            break;
        }
        told.insert(path, Some(body));
        if let Some(begun) = begun.take() {
            let _ = begun.send(());
        }
    }
    told
}

/// `pando up` as a process.
struct Whole(Child);

impl Whole {
    fn start(arguments: &[String]) -> Self {
        let mut child = Command::new(binary("pando"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("pando: {error}: build the whole workspace first"));
        let mut line = String::new();
        // Ends at the latest with the process.
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its line");
        assert!(line.contains("mons"), "pando up says where it serves, but it said {line:?}");
        Self(child)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
