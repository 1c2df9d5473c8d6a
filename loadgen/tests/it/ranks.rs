//! Replays on several ranks, as processes of loadgen itself.

use std::path::Path;
use std::process::{Command, Output};

use loadgen::report::Report;

fn loadgen(words: &str, dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    command.args(words.split(' ')).current_dir(dir).env("RUST_LOG", "warn").output().unwrap()
}

/// A replay of the small trace on a cluster in memory.
fn replay(words: &str) -> (Report, String) {
    let dir = tempfile::tempdir().unwrap();
    let all = format!(
        "replay --trace small --engine memory --osds 1 --replicas 1 --json report.json --html report.html {words}"
    );
    let output = loadgen(&all, dir.path());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words}: {out}\n{err}");
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    (report, std::fs::read_to_string(dir.path().join("report.html")).unwrap())
}

#[test]
fn clients_spread_over_ranks_see_what_they_must() {
    let (report, html) = replay("--clients 4 --ranks 3 --spread --balancer off");
    assert_eq!((report.mismatches, report.operations), (0, 4 * (609 + 20_650 + 821)));
    let ranks = report.extra["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    for rank in ranks {
        assert!(rank["operations"].as_u64().unwrap() > 10_000, "every rank works: {rank}");
    }
    assert_eq!(report.extra["migrations"].as_array().unwrap().len(), 0, "all was dealt before");
    assert!(report.extra["client_latency_sum_seconds"].as_f64().unwrap() > 0.1);
    assert!(report.extra["longest_stall_ms"].as_f64().unwrap() > 0.0);
    assert!(html.contains("rank 2") && html.contains("<svg"));
}

#[test]
fn subtrees_that_move_under_a_replay_lose_nothing() {
    let (report, html) = replay("--clients 4 --ranks 3 --balancer off --chaos moves --seed 3");
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    let migrations = report.extra["migrations"].as_array().unwrap();
    assert!(!migrations.is_empty() && report.extra["chaos"]["moves"].as_u64().unwrap() > 0, "something moved");
    assert_eq!(html.matches("class=\"mark\"").count(), migrations.len());
}

#[test]
fn ranks_killed_under_a_replay_lose_nothing() {
    let (report, _) = replay("--clients 3 --ranks 3 --balancer off --spread --chaos moves,kill --seed 2");
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    assert!(report.extra["chaos"]["kills"].as_u64().unwrap() > 0, "{:?}", report.extra["chaos"]);
}

#[test]
fn options_of_ranks_are_refused_where_there_are_none() {
    let dir = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("replay --target posix:. --spread", "a directory has no ranks"),
        ("replay --target pando:127.0.0.1:1 --ranks 3", "a running cluster has its own ranks"),
        ("replay --target pando:127.0.0.1:1 --chaos kill", "a running cluster has its own ranks"),
        ("replay --ranks 65", "1..=64"),
        ("replay --chaos storms", "moves, kill, split"),
    ] {
        let output = loadgen(words, dir.path());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(told), "{words}: {err}");
    }
}
