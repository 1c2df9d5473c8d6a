use std::path::Path;

use loadgen::replay::acks::Acks;
use loadgen::replay::{self, Options, verify};
use loadgen::report::Report;
use loadgen::target::posix::Posix;
use loadgen::trace::{self, PhaseName, Source, Trace};

use crate::faulty::{Fault, Faulty};

fn small() -> Trace {
    trace::load(&Source::Small).unwrap()
}

fn options(clients: usize) -> Options {
    Options { clients, trace_name: "small".into(), ..Options::default() }
}

fn replay(dir: &Path, options: &Options) -> Report {
    replay::run(&Posix::new(dir), &small(), options).unwrap()
}

#[test]
fn the_small_trace_replays_without_a_mismatch() {
    let dir = tempfile::tempdir().unwrap();
    let report = replay(dir.path(), &options(2));
    assert_eq!((report.mismatches, &report.first_mismatches[..]), (0, &[][..]));
    assert_eq!(report.operations, 2 * (609 + 20_650 + 821));
    assert_eq!(report.phases.len(), 3);
    assert_eq!(report.bytes_verified, 2 * 33_348_028);
    assert_eq!(report.bytes_written, 2 * (5_040_214 + 235_473));
    assert_eq!(report.latencies_us["open"].count, 2 * 7304);
    assert!(!report.interrupted);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the clients' directories are gone");
}

#[test]
fn phases_may_be_replayed_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    for phase in PhaseName::ALL {
        let report = replay(dir.path(), &Options { phases: vec![phase], ..options(2) });
        assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn clients_think_and_do_not_call_it_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let trace = loadgen::trace::parse(crate::crash::trace_text(60).as_bytes()).unwrap();
    let think = std::time::Duration::from_millis(1);
    let options = Options { think, phases: vec![PhaseName::Unpack, PhaseName::Build], ..options(2) };
    let report = replay::run(&Posix::new(dir.path()), &trace, &options).unwrap();
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    let (thought, waited) = ("think_sum_seconds", "client_latency_sum_seconds");
    let [thought, waited] = [thought, waited].map(|name| report.extra[name].as_f64().unwrap());
    let asked = report.operations as f64 * think.as_secs_f64();
    // A phase ends with a pause saved up and not slept, or with one that was too long.
    assert!(thought > 0.9 * asked && thought < asked + 6.0, "{thought} of {asked}");
    assert!(report.seconds >= thought / 2.0 && waited < 2.0 * report.seconds - 0.9 * thought, "{waited}, {thought}");
    assert_eq!(report.extra["think_us"], 1000);
}

#[test]
fn another_seed_means_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    replay(dir.path(), &Options { phases: vec![PhaseName::Unpack], ..options(1) });
    let report = replay(dir.path(), &Options { phases: vec![PhaseName::Build], seed: 2, ..options(1) });
    assert!(report.mismatches > 1000, "every read of a source file differs");
    assert_eq!(report.first_mismatches.len(), replay::DESCRIBED);
}

#[test]
fn a_tree_that_is_not_empty_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("client-1/x")).unwrap();
    let error = replay::run(&Posix::new(dir.path()), &small(), &options(2)).unwrap_err();
    assert!(format!("{error:#}").contains("client-1"), "{error:#}");
}

fn broken(fault: Fault, at: u64) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let target = Faulty { inner: Posix::new(dir.path()), fault, at };
    replay::run(&target, &small(), &options(2)).unwrap()
}

#[test]
fn planted_faults_are_caught_and_named() {
    for (fault, at, operation, got) in [
        (Fault::FlippedBit, 500, "read", "byte 0x"),
        (Fault::WrongOffset, 300, "read", ""),
        (Fault::MissingName, 100, "stat", "ENOENT"),
        (Fault::ShortListing, 4, "getdents", "entries"),
        (Fault::WrongError, 1000, "open", "EACCES"),
    ] {
        let report = broken(fault, at);
        assert!(report.mismatches >= 1, "{fault:?}");
        let first = &report.first_mismatches[0];
        assert_eq!(first.client, 0, "{fault:?}: {first:?}");
        assert!(first.line > 612, "{fault:?}: {first:?}");
        assert!(first.operation.contains(operation) && first.got.contains(got), "{fault:?}: {first:?}");
    }
    // A lost write shows where the file is read or its size is asked for.
    assert!(broken(Fault::LostWrite, 3).mismatches >= 1);
}

#[test]
fn a_target_that_goes_away_interrupts() {
    let report = broken(Fault::Unreachable, 1);
    assert!(report.interrupted);
    assert!(report.operations < 2 * (609 + 20_650 + 821));
}

/// Replays with a list of acknowledged operations, until the target "dies" for client 0.
fn interrupted(dir: &Path, list: &Path) -> Trace {
    let target = Faulty { inner: Posix::new(dir), fault: Fault::Unreachable, at: 10 };
    let options = Options { record_acks: Some(list.into()), ..options(2) };
    let trace = small();
    let report = replay::run(&target, &trace, &options).unwrap();
    assert!(report.interrupted && report.mismatches == 0, "{:?}", report.first_mismatches);
    trace
}

#[test]
fn what_was_acknowledged_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, list) = (dir.path().join("tree"), dir.path().join("acks"));
    std::fs::create_dir(&tree).unwrap();
    let trace = interrupted(&tree, &list);
    let acks = Acks::read(&list).unwrap();
    assert!(acks.count > 1000 && acks.last.iter().all(Option::is_some));
    let verify = || verify::run(&Posix::new(&tree), &trace, &acks, 1).unwrap();

    let report = verify();
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    assert!(report.operations > 500 && report.bytes_verified > 5_000_000);

    // The operation under way may have happened.
    let under_way = Path::new("client-0").join(next_unlink(&trace, acks.last[0].unwrap()));
    std::fs::remove_file(tree.join(&under_way)).unwrap();
    assert_eq!(verify().mismatches, 0);

    // A lost name, a lost byte and a revived name are seen.
    let victim = tree.join("client-0/include/linux/kernel.h");
    let bytes = std::fs::read(&victim).unwrap();
    std::fs::remove_file(&victim).unwrap();
    assert!(verify().mismatches >= 1);
    let mut wrong = bytes.clone();
    wrong[17] ^= 1;
    std::fs::write(&victim, &wrong).unwrap();
    assert_eq!(verify().mismatches, 1);
    std::fs::write(&victim, &bytes).unwrap();
    assert_eq!(verify().mismatches, 0);
    std::fs::write(tree.join("client-0/include/revived"), "x").unwrap();
    assert_eq!(verify().mismatches, 1);
}

/// The recording has a phase more than was replayed: what it would have removed must be there.
#[test]
fn a_run_that_ended_before_the_last_phase_is_found_as_it_left_all() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, list) = (dir.path().join("tree"), dir.path().join("acks"));
    std::fs::create_dir(&tree).unwrap();
    let trace = small();
    let verify = || verify::run(&Posix::new(&tree), &trace, &Acks::read(&list).unwrap(), 1).unwrap();
    for phase in PhaseName::ALL {
        let options = Options { phases: vec![phase], record_acks: Some(list.clone()), ..options(2) };
        let replayed = replay::run(&Posix::new(&tree), &trace, &options).unwrap();
        assert_eq!(replayed.mismatches, 0, "{:?}", replayed.first_mismatches);
        let report = verify();
        assert_eq!((report.mismatches, &report.first_mismatches[..]), (0, &[][..]), "after {phase}");
        let all = phase == PhaseName::Remove;
        assert!(report.operations == 2 || !all && report.operations > 1000, "{phase}: {}", report.operations);
        let victim = tree.join("client-1/include/linux/kernel.h");
        if all {
            continue;
        }
        let bytes = std::fs::read(&victim).unwrap();
        std::fs::remove_file(&victim).unwrap();
        assert!(verify().mismatches >= 1, "a lost file is seen after {phase}");
        std::fs::write(&victim, bytes).unwrap();
    }
    assert_eq!(std::fs::read_dir(tree.join("client-0")).unwrap().count(), 0);
}

fn next_unlink(trace: &Trace, after: u32) -> String {
    let mut operations = trace.phases.iter().flat_map(|phase| &phase.operations);
    let next = operations.find(|operation| operation.line > after && operation.mutated()).unwrap();
    assert_eq!(next.call.name(), "unlink");
    trace.path(next.call.path().unwrap()).to_owned()
}

#[test]
fn a_list_cut_by_a_crash_is_read_and_a_damaged_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, list) = (dir.path().join("tree"), dir.path().join("acks"));
    std::fs::create_dir(&tree).unwrap();
    interrupted(&tree, &list);
    let text = std::fs::read_to_string(&list).unwrap();
    let whole = Acks::read(&list).unwrap();
    std::fs::write(&list, &text[..text.len() - 5]).unwrap();
    assert_eq!(Acks::read(&list).unwrap().count, whole.count - 1);
    std::fs::write(&list, text.replacen("\"line\":", "\"lime\":", 1)).unwrap();
    assert!(Acks::read(&list).is_err());
    std::fs::write(&list, "").unwrap();
    assert!(Acks::read(&list).is_err());
}
