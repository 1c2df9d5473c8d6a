//! Real processes, killed with SIGKILL under load (I1, I4): what was
//! acknowledged is there afterwards, whatever else happened.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pando_client::Client;
use pando_local_cluster::process::{Daemons, Process, START, program};
use pando_proto::Errno;

pub(crate) const TEST: Duration = Duration::from_secs(240);

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
        let mut daemons = Daemons::start(1).expect("the daemons start");
        let client = connect(daemons.address).await;
        let loads: Vec<_> = (0..4).map(|number| tokio::spawn(load(client.clone(), number, 250))).collect();
        while client.try_exists("/client-0/5").await.is_ok_and(|there| !there) {}
        daemons.osds.get_mut(&2).expect("started").kill();
        while client.try_exists("/client-0/renamed-2").await.is_ok_and(|there| !there) {}
        daemons.mds.get_mut(&0).expect("started").kill();
        daemons.start_mds(0).expect("it starts again");
        daemons.start_osd(2).expect("it starts again");
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
        let data = dir.path().join("data");
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
        let mut pando = whole(&data, port.port());
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
            pando.kill();
            acknowledged.extend(cut_off.await.expect("it ends by its deadline"));
            pando = whole(&data, port.port());
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
fn whole(data: &Path, port: u16) -> Process {
    let mut command = Command::new(program("pando").expect("it is built"));
    command.args(["up", "--json", "--mon-port", &port.to_string(), "--data"]).arg(data).stderr(Stdio::null());
    let process = Process::spawn(&mut command).expect("it starts");
    process.wait_for_line(START, |line| line.contains("mons").then_some(())).expect("it says where it serves");
    process
}
