//! Replays on several ranks, as processes of loadgen itself.

use std::path::Path;
use std::process::{Command, Output};

use loadgen::report::Report;

pub(crate) fn loadgen(words: &str, dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    command.args(words.split(' ')).current_dir(dir).env("RUST_LOG", "warn").output().unwrap()
}

/// A replay of some rounds of changes on a cluster in memory.
fn replay(rounds: usize, words: &str) -> (Report, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace"), crate::crash::trace_text(rounds)).unwrap();
    let all = format!(
        "replay --trace trace --phases unpack,build --engine memory --osds 1 --replicas 1 \
         --json report.json --html report.html --balancer off {words}"
    );
    let output = loadgen(&all, dir.path());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words}: {out}\n{err}");
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["report.html", "report.json", "trace"], "nothing else is left");
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    (report, std::fs::read_to_string(dir.path().join("report.html")).unwrap())
}

#[test]
fn clients_spread_over_ranks_see_what_they_must() {
    let (report, html) = replay(100, "--clients 6 --ranks 3 --spread");
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    let ranks = report.extra["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 3);
    for rank in ranks {
        assert!(rank["operations"].as_u64().unwrap() > 300, "every rank works: {rank}");
    }
    assert_eq!(report.extra["migrations"].as_array().unwrap().len(), 0, "all was dealt before");
    assert!(report.extra["client_latency_sum_seconds"].as_f64().unwrap() > 0.1);
    assert!(report.extra["longest_stall_ms"].as_f64().unwrap() > 0.0);
    assert!(html.contains("rank 2") && html.contains("<svg"));
}

#[test]
fn subtrees_that_move_under_a_replay_lose_nothing() {
    let (report, html) = replay(200, "--clients 4 --ranks 3 --chaos moves --seed 3");
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    let migrations = report.extra["migrations"].as_array().unwrap();
    assert!(!migrations.is_empty() && report.extra["chaos"]["moves"].as_u64().unwrap() > 0, "something moved");
    assert_eq!(html.matches("class=\"mark\"").count(), migrations.len());
}

#[test]
fn ranks_killed_under_a_replay_lose_nothing() {
    // The pauses make it last long enough on any machine.
    let (report, _) = replay(200, "--clients 4 --ranks 3 --spread --chaos moves,kill --seed 2 --think-us 3000");
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    assert!(report.extra["chaos"]["kills"].as_u64().unwrap() > 0, "{:?}", report.extra["chaos"]);
}

#[test]
fn processes_killed_under_a_replay_lose_nothing() {
    let (report, _) =
        replay(200, "--clients 4 --ranks 3 --processes --spread --chaos moves,kill --seed 2 --think-us 3000");
    assert_eq!(report.mismatches, 0, "{:?}", report.first_mismatches);
    assert!(report.extra["chaos"]["kills"].as_u64().unwrap() > 0, "{:?}", report.extra["chaos"]);
    assert!(report.target.ends_with("3 ranks as processes)"), "{}", report.target);
    let cpu = &report.extra["rank_cpu_seconds"];
    assert!((0..3).all(|rank| cpu[rank.to_string()].as_f64().unwrap() > 0.0), "each had some: {cpu}");
}

#[test]
fn options_of_ranks_are_refused_where_there_are_none() {
    let dir = tempfile::tempdir().unwrap();
    for (words, told) in [
        ("replay --target posix:. --spread", "a directory has no ranks"),
        ("replay --target pando:127.0.0.1:1 --ranks 3", "a running cluster has its own ranks"),
        ("replay --target pando:127.0.0.1:1 --chaos kill", "a running cluster has its own ranks"),
        ("replay --target pando:127.0.0.1:1 --rank-cpu 10", "a running cluster has its own ranks"),
        ("replay --target pando:127.0.0.1:1 --processes", "a running cluster has its own ranks"),
        ("replay --target posix:. --processes", "a directory has no ranks"),
        ("replay --chaos moves", "--chaos moves needs --ranks 2"),
        ("replay --ranks 1 --chaos kill,moves", "--chaos moves needs --ranks 2"),
        ("replay --ranks 65", "1..=64"),
        ("replay --chaos storms", "moves, kill, split"),
    ] {
        let output = loadgen(words, dir.path());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(told), "{words}: {err}");
    }
}

#[test]
fn a_subtree_that_moves_to_and_fro_fails_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let words = "migrate --inodes 300 --moves 3 --clients 3 --engine memory --osds 1 --replicas 1 \
                 --json report.json --html report.html";
    let output = loadgen(words, dir.path());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    assert_eq!((report.mismatches, &report.extra["failed_requests"]), (0, &0.into()));
    let moves = report.extra["moves"].as_array().unwrap();
    let to: Vec<_> = moves.iter().map(|row| row["to"].as_u64().unwrap()).collect();
    assert_eq!(to, [1, 0, 1]);
    assert!(report.extra["cached_inodes"].as_u64().unwrap() >= 300, "{}", report.extra["cached_inodes"]);
    assert!(out.contains("longest stall of a move: median"), "{out}");
    assert!(std::fs::read_to_string(dir.path().join("report.html")).unwrap().contains("0 -&gt; 1"));
}

#[test]
fn more_ranks_replay_the_same_and_fill_the_table() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace"), crate::crash::trace_text(30)).unwrap();
    let words = "experiment multi-mds --trace trace --phases unpack,build --ranks 1,2 --clients 3 --rank-cpu 0 --spread \
                 --rotate 1 --think-us 20000 --engine memory --json report.json --html report.html";
    let output = loadgen(words, dir.path());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    let rows = report.extra["rows"].as_array().unwrap();
    let numbers: Vec<_> = rows.iter().map(|row| (row["clients"].as_u64(), row["ranks"].as_u64())).collect();
    assert_eq!((report.mismatches, numbers), (0, vec![(Some(3), Some(1)), (Some(3), Some(2))]));
    assert!(rows[1]["time_ratio"].as_f64().unwrap() > 0.0 && out.contains("latency sum s"), "{out}");
    for part in [
        "1 osd, 1 replica, memory",
        "ranks are threads",
        "dealt over the ranks",
        "compute 20000 us",
        "moving on every 1 s",
        "of share %",
    ] {
        assert!(out.contains(part), "the head says what the figures depend on, also {part}: {out}");
    }
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        let thought = number("think_sum_seconds");
        assert!(thought > 0.0 && thought < 3.0 * number("seconds") && number("other_cpu_seconds") > 0.0, "{row}");
        assert!(row["share_used_percent"].is_null(), "there is no share: {row}");
    }
    assert_eq!(rows[0]["migrations"], 0, "there is no other rank");
    assert!(rows[1]["migrations"].as_u64().unwrap() > 0, "three trees on two ranks take turns");
    let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert_eq!(html.matches("<svg").count(), 4, "throughput and latencies of each run");
}

#[test]
fn a_large_directory_goes_to_another_rank_and_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let words = "rename --entries 2500 --flat 400 --renames 3 --warm 100 --engine memory --osds 1 --replicas 1 \
                 --json report.json --html report.html";
    let output = loadgen(words, dir.path());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    assert_eq!((report.mismatches, &report.extra["entries"]), (0, &2500.into()));
    let cases = report.extra["cases"].as_array().unwrap();
    let names: Vec<_> = cases.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(names, ["again", "first"]);
    for row in cases {
        for all in ["big_ms", "empty_ms"] {
            assert_eq!(row[all].as_array().unwrap().len(), 3, "{row}");
        }
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(out.contains("for the first time (split off first)"), "{out}");
}

#[test]
fn paths_of_a_killed_rank_are_served_again_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let words = "failover --clients 3 --engine memory --osds 1 --replicas 1 --json report.json --html report.html";
    let output = loadgen(words, dir.path());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    assert_eq!((report.mismatches, &report.extra["failed_requests"]), (0, &0.into()));
    for path in report.extra["paths"].as_array().unwrap() {
        let killed = path["rank"] == 1;
        assert_eq!(path["rank_after"] == path["rank"], !killed, "{path}");
        let first = path["first_success_seconds"].as_f64().unwrap();
        // The lease is 2 s; the rest is for a busy machine.
        assert!(if killed { (0.5..10.0).contains(&first) } else { first < 2.0 }, "{path}");
    }
}

#[test]
fn a_share_of_a_cpu_is_kept_or_said_to_be_impossible() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace"), crate::crash::trace_text(20)).unwrap();
    let words = "replay --trace trace --phases unpack,build --clients 2 --ranks 1 --rank-cpu 20 --engine memory --osds 1 \
                 --replicas 1 --json report.json";
    let output = loadgen(words, dir.path());
    let err = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(2) {
        assert!(err.contains("--rank-cpu needs a cgroup directory"), "{err}");
        return;
    }
    assert!(output.status.success(), "{err}");
    let report = Report::read(&dir.path().join("report.json")).unwrap();
    let cpu = report.extra["rank_cpu_seconds"]["0"].as_f64().unwrap();
    // It also works before and after what is measured, and debts are paid later.
    assert!(cpu > 0.0 && cpu < 0.2 * report.seconds + 0.5, "{cpu} s of CPU in {} s", report.seconds);
}
