//! Daemons that are started wrong say so at once, make nothing, and exit with code 2.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pando_local_cluster::process::{Process, ignores_hangups, program};
use pando_local_cluster::{LocalCluster, Options};
use rustix::process::Signal;

/// Far less than a daemon looks for mons.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Starts a daemon that is to refuse: what it said.
fn refused(dir: &Path, name: &str, flags: &str) -> String {
    let log = dir.join("log");
    let mut command = Command::new(program(name).expect("it is built"));
    command.args(flags.split(' ')).current_dir(dir).env_remove("RUST_LOG");
    command.stderr(std::fs::File::create(&log).expect("a log"));
    let mut process = Process::spawn(&mut command).expect("it starts");
    let ended = process.wait(AT_ONCE);
    let told = std::fs::read_to_string(&log).expect("a log");
    let code = ended.unwrap_or_else(|error| panic!("{name} {flags}: {error}: {told}")).code();
    assert_eq!(code, Some(2), "{name} {flags}: {told}");
    told
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let mon = "--listen 127.0.0.1:0 --data-dir data";
    for (name, flags, told) in [
        ("pando-mon", format!("{mon} --replicas 9"), "size is 9, has to be 1 to 3"),
        ("pando-mon", format!("{mon} --replicas 0"), "size is 0, has to be 1 to 3"),
        ("pando-mon", format!("{mon} --replicas 3 --expected-osds 2"), "expected_osds is 2"),
        ("pando-mon", format!("{mon} --expected-osds 0"), "expected_osds has to be 1 to"),
        ("pando-mon", format!("{mon} --data-pgs 99999"), "has 99999 PGs"),
        ("pando-mon", format!("{mon} --advertise garbage"), "--advertise takes HOST:PORT: `garbage`"),
        ("pando-mon", format!("{mon} --peer 1=garbage"), "--peer takes ID=HOST:PORT: `garbage`"),
        ("pando-mon", format!("{mon} --id 2 --peer 1=127.0.0.1:1"), "not among its own peers"),
        ("pando-mon", "--listen 127.0.0.1:0".to_owned(), "--data-dir"),
        ("pando-osd", "--mons garbage --data-dir data".to_owned(), "--mons takes HOST:PORT"),
        ("pando-osd", "--mons 127.0.0.1:1,a:0 --data-dir data".to_owned(), "`a:0` is none"),
        (
            "pando-osd",
            "--mons 127.0.0.1:1 --data-dir data --advertise garbage".to_owned(),
            "--advertise takes HOST:PORT",
        ),
        ("pando-osd", "--mons 127.0.0.1:1".to_owned(), "--data-dir"),
        ("pando-mds", "--mons garbage".to_owned(), "`garbage` is none"),
        ("pando-mds", "--mons 127.0.0.1:1,http://a:1".to_owned(), "`http://a:1` is none"),
        ("pando-mds", "--mons 127.0.0.1:1 --advertise garbage".to_owned(), "--advertise takes HOST:PORT"),
        ("pando-mds", "--mons 127.0.0.1:1 --cluster-id x".to_owned(), "32 hexadecimal digits"),
    ] {
        let text = refused(dir.path(), name, &flags);
        assert!(text.contains(told), "{name} {flags}: {text}");
        assert!(!dir.path().join("data").exists(), "{name} {flags} makes nothing");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_is_named_as_a_mon_and_is_none_is_told() {
    let options = Options { osds: 1, replicas: 1, metadata_pgs: 4, data_pgs: 4, ..Options::default().memory() };
    let cluster = LocalCluster::start(options).await.expect("the cluster starts");
    let others: Vec<String> = [cluster.rank_addresses().values().next(), cluster.osd_addresses().values().next()]
        .into_iter()
        .map(|address| address.expect("one of each").to_string())
        .collect();
    let dir = tempfile::tempdir().unwrap();
    for address in &others {
        let told = format!("{address} answers, but is not a mon");
        for (name, flags) in [("pando-mds", "--rank 1"), ("pando-osd", "--engine memory")] {
            let text = refused(dir.path(), name, &format!("{flags} --mons {address}"));
            assert!(text.contains(&told), "{name}: {text}");
        }
    }
    cluster.shutdown().await;
}

/// A closed terminal is no crash: the daemon stops as by SIGTERM.
#[test]
fn a_hangup_stops_a_daemon_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(program("pando-mon").expect("it is built"));
    command.args("--listen 127.0.0.1:0 --data-dir data".split(' ')).current_dir(dir.path()).env("RUST_LOG", "warn");
    let mut mon = Process::spawn(&mut command).expect("it starts");
    mon.wait_for_line(AT_ONCE, |line| line.contains("serves on").then_some(())).expect("it serves");
    let signal = if ignores_hangups() { Signal::TERM } else { Signal::HUP };
    assert_eq!(mon.end_by(signal, AT_ONCE).expect("it ends").code(), Some(0));
}
