//! Compares two reports.

use std::fmt::Write as _;

use crate::report::Report;

/// A table of `b` against `a`. Ratios above 1 mean that `b` is faster (rates) or slower (times).
pub fn compare(a: &Report, b: &Report) -> String {
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    line(format_args!("A: {}", a.heading()));
    line(format_args!("B: {}", b.heading()));
    if a.workload != b.workload || a.clients != b.clients {
        line(format_args!("(different workloads or clients: ratios say little)"));
    }
    line(format_args!("{:<28} {:>13} {:>13} {:>8}", "", "A", "B", "B/A"));
    let mut row = |name: &str, a: f64, b: f64| {
        let ratio = if a == 0.0 { "-".to_owned() } else { format!("{:.3}", b / a) };
        line(format_args!("{name:<28} {a:>13.2} {b:>13.2} {ratio:>8}"));
    };
    row("seconds", a.seconds, b.seconds);
    row("ops_per_s", a.ops_per_s, b.ops_per_s);
    row("mismatches", a.mismatches as f64, b.mismatches as f64);
    for phase in &a.phases {
        if let Some(other) = b.phases.iter().find(|other| other.name == phase.name) {
            row(&format!("{} ops_per_s", phase.name), phase.ops_per_s, other.ops_per_s);
        }
    }
    for (name, latency) in &a.latencies_us {
        if let Some(other) = b.latencies_us.get(name) {
            row(&format!("{name} p50 us"), latency.p50, other.p50);
            row(&format!("{name} p99 us"), latency.p99, other.p99);
        }
    }
    for (name, value) in &a.extra {
        if let (Some(a), Some(b)) = (value.as_f64(), b.extra.get(name).and_then(serde_json::Value::as_f64)) {
            row(name, a, b);
        }
    }
    if let (Some(a), Some(b)) = (a.mds_rss_bytes, b.mds_rss_bytes) {
        row("mds_rss_bytes", a as f64, b as f64);
    }
    out
}
