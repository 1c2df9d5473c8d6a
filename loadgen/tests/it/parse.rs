use loadgen::trace::{self, Call, PhaseName, Problem, Source, TraceError};
use pando_proto::Errno;

fn problem(text: &str) -> (u32, Problem) {
    let TraceError { line, problem } = trace::parse(text.as_bytes()).unwrap_err();
    (line, problem)
}

/// A trace whose build phase has these lines.
fn build(lines: &[&str]) -> String {
    format!("# fstrace 1\n# phase build {}\n{}\n", lines.len(), lines.join("\n"))
}

#[test]
fn the_embedded_traces_have_what_their_headers_say() {
    for (source, counts) in [(Source::Small, [609, 20_650, 821]), (Source::Medium, [7_456, 63_113, 16_154])] {
        let trace = trace::load(&source).unwrap();
        let found: Vec<_> = trace.phases.iter().map(|phase| (phase.name, phase.operations.len())).collect();
        assert_eq!(found, PhaseName::ALL.into_iter().zip(counts).collect::<Vec<_>>());
        assert_eq!(trace.count(&PhaseName::ALL), counts.iter().sum::<usize>() as u64);
    }
}

#[test]
fn the_small_trace_has_its_known_mix() {
    let trace = trace::load(&Source::Small).unwrap();
    let all = || trace.phases.iter().flat_map(|phase| &phase.operations);
    let count = |name| all().filter(|operation| operation.call.name() == name).count();
    assert_eq!((count("open"), count("read"), count("readlink"), count("create")), (7304, 4671, 84, 570));
    let missing = all().filter(|operation| operation.expected == Err(Errno::ENOENT)).count();
    assert_eq!(missing, 3191);
    let created: u64 = all()
        .map(|operation| match operation.call {
            Call::Create { size, .. } => size,
            _ => 0,
        })
        .sum();
    assert_eq!(created, 5_040_214);
}

#[test]
fn a_line_becomes_an_operation() {
    let text = build(&["open\t3\ta/b\tO_WRONLY|O_CREAT|O_EXCL\t644", "write\t10\t3", "close\t0\t3", "stat\tENOENT\tc"]);
    let trace = trace::parse(text.as_bytes()).unwrap();
    let operations = &trace.phases[0].operations;
    assert_eq!(operations[0].line, 3);
    assert_eq!(trace.describe(&operations[0].call), "open a/b");
    assert_eq!(operations[1].expected, Ok(10));
    assert!(operations[0].mutated() && operations[1].mutated() && !operations[2].mutated());
    assert_eq!(operations[3].expected, Err(Errno::ENOENT));
}

/// A line, and what is to be said of it.
type Case = (&'static str, fn(&Problem) -> bool);

#[test]
fn hostile_lines_are_refused_with_their_number() {
    let cases: &[Case] = &[
        ("frobnicate\t0\ta", |p| matches!(p, Problem::UnknownOperation(_))),
        ("open\t1\ta", |p| matches!(p, Problem::Columns { found: 3, .. })),
        ("stat", |p| matches!(p, Problem::Columns { .. })),
        ("", |p| matches!(p, Problem::UnknownOperation(_))),
        ("open\t0\ta\tO_RDONLY\t-", |p| matches!(p, Problem::HandleInUse(0))),
        ("open\t99999999999\ta\tO_RDONLY\t-", |p| matches!(p, Problem::HandleInUse(_))),
        ("open\t1\ta\tO_RDONLY|O_WHATEVER\t-", |p| matches!(p, Problem::Flags(_))),
        ("open\t1\ta\tO_CREAT\t644", |p| matches!(p, Problem::Flags(_))),
        ("open\t1\ta\tO_RDONLY\t999", |p| matches!(p, Problem::Number { .. })),
        ("close\t0\t7", |p| matches!(p, Problem::NotOpen(7))),
        ("close\t0\t-7", |p| matches!(p, Problem::Number { .. })),
        ("unlink\t0\t/etc/passwd", |p| matches!(p, Problem::Path { .. })),
        ("unlink\t0\t../x", |p| matches!(p, Problem::Path { .. })),
        ("unlink\t0\ta//b", |p| matches!(p, Problem::Path { .. })),
        ("unlink\t0\ta\0b", |p| matches!(p, Problem::Path { .. })),
        ("symlink\t0\t/etc\ta", |p| matches!(p, Problem::Path { .. })),
        ("symlink\t0\t../../x\ta/b", |p| matches!(p, Problem::Path { .. })),
        ("symlink\t0\tc/../../x\ta/b", |p| matches!(p, Problem::Path { .. })),
        ("unlink\tEWHATEVER\ta", |p| matches!(p, Problem::Result(_))),
        ("unlink\t-1\ta", |p| matches!(p, Problem::Result(_))),
        ("unlink\t99999999999999999999999\ta", |p| matches!(p, Problem::Number { .. })),
        ("stat\t0\ta", |p| matches!(p, Problem::Kind(_))),
        ("stat\t0\ta\tx", |p| matches!(p, Problem::Kind(_))),
        ("stat\tENOENT\ta\td", |p| matches!(p, Problem::Kind(_))),
        ("access\t0\ta\tq", |p| matches!(p, Problem::Access(_))),
        ("truncate\t0\ta\t18446744073709551615", |p| matches!(p, Problem::TooLarge { .. })),
        ("M\t0\ta\t755", |p| matches!(p, Problem::UnknownOperation(_))),
    ];
    for (line, expected) in cases {
        let (number, problem) = problem(&build(&[line]));
        assert!(expected(&problem), "{line:?}: {problem}");
        assert_eq!(number, 3, "{line:?}");
    }
    let long = "a/".repeat(10_000);
    assert_eq!(problem(&build(&[&long])).1, Problem::LineTooLong);
    let (line, wrong) = problem(&build(&["open\t1\ta\tO_RDONLY\t-", "read\t0\t1\t99999999999999"]));
    assert!(line == 4 && matches!(wrong, Problem::TooLarge { .. }));
    let (_, wrong) = problem(&build(&["open\t1\ta\tO_WRONLY\t-", "write\tENOSPC\t1"]));
    assert_eq!(wrong, Problem::NoLength("write"));
}

#[test]
fn hostile_files_are_refused() {
    assert_eq!(problem(""), (1, Problem::NotATrace));
    assert_eq!(problem("M\ta\t755\n"), (1, Problem::NotATrace));
    assert_eq!(problem("# fstrace 1\nM\ta\t755\n"), (2, Problem::NoPhase));
    assert!(matches!(problem("# fstrace 1\n# phase build 2\nrmdir\t0\ta\n").1, Problem::Count { found: 1, .. }));
    assert!(matches!(problem("# fstrace 1\n# phase build 0\n# phase unpack 0\n").1, Problem::Phase(_)));
    assert!(matches!(problem("# fstrace 1\n# phase lunch 0\n").1, Problem::Phase(_)));
    assert!(matches!(problem("# fstrace 1\n# phase build 99999999999\n").1, Problem::TooLarge { .. }));
    let not_utf8 = trace::parse(&b"# fstrace 1\n# \xff\n"[..]).unwrap_err();
    assert_eq!(not_utf8, TraceError { line: 2, problem: Problem::NotUtf8 });
}

#[test]
fn damaged_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace");
    let load = || trace::load(&Source::File(file.clone())).unwrap_err().to_string();
    assert!(load().contains("cannot read trace"));
    std::fs::write(&file, [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]).unwrap();
    assert!(load().contains("decompress"));
    let whole = include_bytes!("../../traces/kernel-small.trace.zst");
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert!(load().contains("cannot be read"));
}
