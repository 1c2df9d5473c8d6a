use super::*;
use crate::ranks::observe::{Migration, RankSeries, Sample};
use crate::report::PhaseReport;

fn observed() -> Observed {
    let sample = |second, ops_per_s| Sample { second, ops_per_s, busy_permille: 500, cpu_percent: 20.0 };
    let series =
        |rank| RankSeries { rank, series: vec![sample(1.0, 100.0), sample(2.0, 300.0)], ..RankSeries::default() };
    let migration = Migration {
        second: 1.5,
        subtree: 7,
        path: "/client-<3>".to_owned(),
        from: 0,
        to: 1,
        map_epoch: 40,
        reason: Some("mds.0 is saturated".to_owned()),
    };
    Observed { ranks: vec![series(0), series(1)], migrations: vec![migration], ..Observed::default() }
}

#[test]
fn a_page_holds_all_and_needs_nothing() {
    let mut report = Report::new("replay", "pando & co".to_owned(), 4);
    report.phases.push(PhaseReport::new("build", 2.0, 100));
    report.sum_up();
    let distribution = [Bucket { up_to_us: 512.0, count: 90 }, Bucket { up_to_us: 2_000_000.0, count: 3 }];
    report.extra.insert("latency_distribution".into(), serde_json::to_value(distribution).unwrap());
    report.extra.insert("client_latency_sum_seconds".into(), 12.5.into());
    let text = replay(&report, &observed()).unwrap().text_of_file();
    for part in ["pando &amp; co", "12.50 s", "rank 1", "class=\"mark\"", "/client-&lt;3&gt;", "≤ 512 µs", "≤ 2.00 s"]
    {
        assert!(text.contains(part), "{part} is missing");
    }
    assert!(text.contains("mds.0 is saturated") && text.matches("<svg").count() == 3);
    for outside in ["http:", "https:", "src=", "<script", "<link", "@import", "url("] {
        assert!(!text.contains(outside), "{outside} reaches outside");
    }
}

#[test]
fn times_are_shown_in_their_unit() {
    assert_eq!(time_text(512.0), "512 µs");
    assert_eq!(time_text(8192.0), "8.192 ms");
    assert_eq!(time_text(3_500_000.0), "3.50 s");
}
