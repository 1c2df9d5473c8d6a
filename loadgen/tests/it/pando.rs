use loadgen::floor;
use loadgen::replay;
use loadgen::small_files::{self, Phase, inline_2013};
use loadgen::target::embedded::Embedded;
use loadgen::target::pando::Pando;
use loadgen::trace;
use pando_local_cluster::Options as ClusterOptions;

fn memory() -> ClusterOptions {
    ClusterOptions { osds: 1, replicas: 1, ..ClusterOptions::default().memory() }
}

fn options() -> small_files::Options {
    small_files::Options {
        files: 50,
        size: 1000,
        clients: 3,
        threads: 2,
        phases: Phase::ALL.to_vec(),
        batch: 1,
        seed: 4,
    }
}

#[test]
fn small_files_of_all_sizes_come_back_as_written() {
    let cluster = Embedded::start(memory()).unwrap();
    let target = Pando::new(cluster.mons());
    for (size, batch) in [(0, 1), (1000, 1), (5000, 1), (1000, 7)] {
        let report = small_files::run(&target, &small_files::Options { size, batch, ..options() }).unwrap();
        assert_eq!(report.mismatches, 0, "{size}: {:?}", report.first_mismatches);
        assert_eq!((report.operations, report.bytes_verified), (7 * 50, 50 * size));
    }
    let unread = small_files::Options { phases: vec![Phase::Create], ..options() };
    assert_eq!(small_files::run(&target, &unread).unwrap().mismatches, 0);
    let other = small_files::Options { phases: vec![Phase::Read], seed: 5, ..options() };
    assert_eq!(small_files::run(&target, &other).unwrap().mismatches, 50, "other bytes are noticed");
}

#[test]
fn the_experiment_reads_one_by_one_and_in_batches_with_and_without_inline_bodies() {
    // One full batch and a rest.
    let report = inline_2013::run_with(&memory(), 3, false, &[70]).unwrap();
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    // Two columns, two manners, three readings.
    assert_eq!(report.bytes_verified, 2 * 2 * 3 * 70 * 1024);
    let names: Vec<&str> = report.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["read 70 without", "read 70 with", "read_many 70 without", "read_many 70 with"]);
    let row = &report.extra["rows"][0];
    assert_eq!(row["files"], 70);
    for field in ["without_seconds", "with_seconds", "batched_without_seconds", "batched_with_seconds"] {
        assert!(row[field].as_f64().unwrap() > 0.0, "{row}");
    }
    let table = inline_2013::table(&report);
    assert_eq!(table.lines().last().unwrap().split('|').count(), 7, "{table}");
}

/// A trace with the operations that the recorded ones lack.
const REST: &str = "# fstrace 1
# phase unpack 3
M\ta\t755
W\ta/f\t644\t10000
S\ta/l\tf
# phase build 36
open\t1\ta/f\tO_RDWR\t-
pwrite\t5000\t1\t3000
pread\t7000\t1\t9000\t3000
ftruncate\t0\t1\t6000
fstat\t0\t1\tf\t6000
ftruncate\t0\t1\t20000
pread\t16000\t1\t20000\t4000
unlink\t0\ta/f
stat\tENOENT\ta/l
lstat\t0\ta/l\tl
read\t20000\t1\t99999
read\t0\t1\t1
fsync\t0\t1
fchmod\t0\t1\t600
fchown\t0\t1
futimens\t0\t1
close\t0\t1
open\t1\ta/l\tO_WRONLY|O_CREAT|O_APPEND\t644
write\t100\t1
write\t6000\t1
open\t2\ta/f\tO_RDONLY\t-
link\t0\ta/f\ta/g
rename\t0\ta/g\ta/h
renamenx\tEEXIST\ta/h\ta/f
rename\t0\ta/f\tb
pread\t6100\t2\t10000\t0
close\t0\t1
close\t0\t2
truncate\t0\tb\t50
stat\t0\ta/h\tf\t50
chmod\t0\ta/h\t600
utimens\t0\ta/h
access\tENOENT\t\tx
readlink\t1\ta/l
rmdir\tENOTEMPTY\ta
open\tEEXIST\ta/l\tO_RDWR|O_CREAT|O_EXCL\t644
# phase remove 9
open\t1\ta\tO_RDONLY|O_DIRECTORY\t-
getdents\t4\t1
getdents\t0\t1
fstat\t0\t1\td
close\t0\t1
unlink\t0\ta/h
unlink\t0\ta/l
rmdir\t0\ta
unlink\t0\tb
";

#[test]
fn the_operations_that_the_recordings_lack_agree_too() {
    let trace = trace::parse(REST.as_bytes()).unwrap();
    let options = replay::Options { clients: 2, ..replay::Options::default() };
    let dir = tempfile::tempdir().unwrap();
    let local = loadgen::target::posix::Posix::new(dir.path());
    let report = replay::run(&local, &trace, &options).unwrap();
    assert_eq!((report.mismatches, &report.first_mismatches[..]), (0, &[][..]), "a local directory");
    let cluster = Embedded::start(memory()).unwrap();
    let report = replay::run(&Pando::new(cluster.mons()), &trace, &options).unwrap();
    assert_eq!((report.mismatches, &report.first_mismatches[..]), (0, &[][..]), "pando");
}

#[test]
fn the_floor_has_all_its_figures() {
    let options =
        floor::Options { clients: 2, threads: 1, seconds: 0.3, seed: 1, cluster: ClusterOptions::default().memory() };
    let report = floor::run(&options).unwrap();
    assert_eq!(report.mismatches, 0);
    for name in ["echo", "inline_read", "durable_create"] {
        assert!(report.extra[&format!("{name}_ops_per_s")].as_f64().unwrap() > 0.0, "{name}");
    }
    for name in ["synced_commits_per_s", "inline_read_ratio", "durable_create_ratio", "checksum_mib_per_s"] {
        assert!(report.extra[name].as_f64().unwrap() > 0.0, "{name}");
    }
}
