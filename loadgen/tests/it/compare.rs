use loadgen::compare::compare;
use loadgen::measure::Recorder;
use loadgen::report::{PhaseReport, Report};
use std::time::Duration;

fn report(operations: u64, seconds: f64, micros: u64) -> Report {
    let mut report = Report::new("replay", "posix:x".into(), 4);
    let mut recorder = Recorder::default();
    for _ in 0..operations {
        recorder.record("open", Duration::from_micros(micros));
    }
    report.latencies_us = recorder.latencies();
    report.phases.push(PhaseReport::new("build", seconds, operations));
    report.sum_up();
    report
}

#[test]
fn ratios_are_b_to_a() {
    let table = compare(&report(100, 2.0, 10), &report(100, 1.0, 30));
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("seconds").ends_with("0.500"), "{table}");
    assert!(row("ops_per_s").ends_with("2.000"), "{table}");
    assert!(row("build ops_per_s").ends_with("2.000"), "{table}");
    let ratio: f64 = row("open p50 us").split_whitespace().last().unwrap().parse().unwrap();
    assert!((2.9..3.1).contains(&ratio), "{table}");
    assert!(row("mismatches").ends_with('-'), "nothing to divide by: {table}");
}

#[test]
fn reports_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    let mut written = report(10, 1.0, 5);
    written.extra.insert("echo_ops_per_s".into(), 5.5.into());
    written.write(&file).unwrap();
    assert_eq!(Report::read(&file).unwrap(), written);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for field in ["workload", "seconds", "mismatches", "operations", "ops_per_s", "echo_ops_per_s"] {
        assert!(json.get(field).is_some(), "{field} stands at the top");
    }
    std::fs::write(&file, "{}").unwrap();
    assert!(format!("{:#}", Report::read(&file).unwrap_err()).contains("is no report of loadgen"));
}

#[test]
fn percentiles_are_of_what_was_recorded() {
    let mut recorder = Recorder::default();
    for micros in 1..=1000 {
        recorder.record("read", Duration::from_micros(micros));
    }
    let mut other = Recorder::default();
    other.record("read", Duration::from_micros(2000));
    other.record("write", Duration::ZERO);
    recorder.merge(other);
    assert_eq!(recorder.total(), 1002);
    let read = recorder.latencies()["read"];
    assert_eq!(read.count, 1001);
    assert!((490.0..=515.0).contains(&read.p50) && (980.0..=1010.0).contains(&read.p99), "{read:?}");
    assert!((1980.0..=2020.0).contains(&read.max), "{read:?}");
}
