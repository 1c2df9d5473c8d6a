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
        failure: false,
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
fn columns_of_numbers_are_to_the_right() {
    let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
    let mut page = Page::new("");
    page.table(&["name", "n", "why"], &[row(["a", "1.5 s", "3 apples"]), row(["2", "-", "none"])]);
    let text = page.text_of_file();
    assert!(text.contains("<th>name</th><th class=\"n\">n</th><th>why</th>"), "{text}");
    assert!(text.contains("<td>2</td><td class=\"n\">-</td><td>none</td>"), "{text}");
}

#[test]
fn pages_follow_the_readers_light_or_dark() {
    let text = Page::new("").picture(&curves(&[], &[], "")).picture(&latency_bars(&[])).text_of_file();
    assert!(text.contains("color-scheme:light dark") && text.contains("prefers-color-scheme:dark"));
    let body = text.split("<body>").nth(1).unwrap();
    for fixed in ["#000", "#fff", "black", "white"] {
        assert!(!body.contains(fixed), "{fixed} cannot be seen on every page");
    }
}

#[test]
fn times_are_shown_in_their_unit() {
    let texts = [0.25, 512.0, 999.7, 8192.0, 131_072.0, 999_999.0, 3_500_000.0, 41_000_000.0].map(time_text);
    assert_eq!(texts, ["0.25 µs", "512 µs", "1.00 ms", "8.19 ms", "131 ms", "1.00 s", "3.50 s", "41.0 s"]);
}
