//! The command as a user runs it: real processes, real data.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pando_local_cluster::process::{Process, ignores_hangups, interrupts};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Every wait has a deadline.
const LIMIT: Duration = Duration::from_secs(60);

fn pando(mons: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(args).env("PANDO_MONS", mons).env_remove("RUST_LOG").stdin(Stdio::null());
    command.output().expect("the command runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn failure(output: &Output) -> (i32, String) {
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

struct Up {
    process: Process,
    mons: String,
}

/// `pando up` on a directory, not yet started.
fn up_command(data: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(["up", "--json", "--mon-port", "0", "--osds", "1", "--data"]).arg(data).args(flags);
    command.env_remove("RUST_LOG");
    command
}

/// A start that fails.
fn up_failure(data: &Path) -> (i32, String) {
    failure(&up_command(data, &[]).output().expect("the command runs"))
}

impl Up {
    fn start(data: &Path) -> Self {
        Self::run(up_command(data, &[]))
    }

    fn run(mut command: Command) -> Self {
        let process = Process::spawn(&mut command).expect("it starts");
        let up: Value =
            process.wait_for_line(LIMIT, |line| serde_json::from_str(line).ok()).expect("it serves in time");
        let mons =
            up["mons"].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        Self { process, mons }
    }

    /// SIGTERM; the exit code.
    fn stop(mut self) -> Option<i32> {
        self.process.end_by(Signal::TERM, LIMIT).expect("it stops in time").code()
    }
}

#[test]
fn what_was_put_outlives_kill_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let local = dir.path().join("local");
    std::fs::write(&local, vec![7; 100_000]).unwrap();
    let up = Up::start(&data);
    stdout(&pando(&up.mons, &["mkdir", "-p", "/a/b"]));
    stdout(&pando(&up.mons, &["put", local.to_str().unwrap(), "/a/b"]));
    drop(up); // kill -9
    let up = Up::start(&data);
    assert_eq!(pando(&up.mons, &["cat", "/a/b/local"]).stdout, vec![7; 100_000]);
    assert_eq!(up.stop(), Some(0));
    let up = Up::start(&data);
    let copy = dir.path().join("copy");
    stdout(&pando(&up.mons, &["get", "/a/b/local", copy.to_str().unwrap()]));
    assert_eq!(std::fs::read(copy).unwrap(), vec![7; 100_000]);
    assert_eq!(up.stop(), Some(0));
}

#[test]
fn the_verbs_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let up = Up::start(&dir.path().join("data"));
    let run = |args: &[&str]| pando(&up.mons, args);
    files(&up.mons);
    whole_or_nothing(&up.mons);
    nothing_is_left(&up.mons);
    got_whole_or_not_at_all(&up);
    directories_do_not_go_into_themselves(&up.mons);
    no_mon(&up.mons);

    stdout(&run(&["mkdir", "/d"]));
    stdout(&run(&["ln", "-s", "/f", "/d/link"]));
    stdout(&run(&["ln", "/f", "/d/hard"]));
    let listed = objects(&stdout(&run(&["ls", "-l", "--json", "/d"])));
    assert_eq!((&listed[0]["name"], &listed[0]["nlink"]), (&"hard".into(), &2.into()));
    assert_eq!((&listed[1]["kind"], &listed[1]["target"]), (&"symlink".into(), &"/f".into()));
    assert_eq!(stdout(&run(&["ls", "/d"])), "hard\nlink\n");
    assert!(stdout(&run(&["ls", "-l", "/d"])).contains("link -> /f"));
    stdout(&run(&["mv", "/d/hard", "/moved"]));
    stdout(&run(&["mv", "/moved", "/d"]));
    let stat = objects(&stdout(&run(&["stat", "--json", "/d/moved"])));
    assert_eq!(stat[0]["size"], 5);
    assert!(stdout(&run(&["stat", "/d"])).contains("directory"));

    let (code, text) = failure(&run(&["rm", "/d"]));
    assert_eq!(
        (code, text.as_str()),
        (1, "pando: /d: is a directory (EISDIR); use `rm -r` to remove it with all below")
    );
    stdout(&run(&["rm", "-r", "/d"]));
    stdout(&run(&["rm", "-f", "/d"]));
    let (code, text) = failure(&run(&["cat", "/d"]));
    assert_eq!((code, text.as_str()), (1, "pando: /d: no such file or directory (ENOENT)"));
    assert_eq!(failure(&run(&["mkdir", "/x/y"])).0, 1);
    assert_eq!(failure(&run(&["--uid", "9", "mkdir", "/no"])).0, 1);
    let (code, text) = failure(&run(&["cat", "/f", "/"]));
    assert_eq!((code, text.as_str()), (1, "pando: /: is a directory (EISDIR)"));
    stdout(&run(&["mkdir", "-p", "/e/f"]));
    let (code, text) = failure(&run(&["cat", "/e/f"]));
    assert_eq!((code, text.as_str()), (1, "pando: /e/f: is a directory (EISDIR)"), "the path as it was given");
    let (code, text) = failure(&run(&["ln", "-s", "", "/e/link"]));
    assert!(code == 2 && text.contains("TARGET"), "{text}");
    cluster(&up.mons);
    removals(&up.mons);
    assert_eq!(up.stop(), Some(0));
}

fn removals(mons: &str) {
    let run = |args: &[&str]| pando(mons, args);
    let (code, text) = failure(&run(&["osd", "rm", "osd.1"]));
    assert!(code == 1 && text.contains("osd.1") && text.contains("holds a lease"), "{text}");
    let (code, text) = failure(&run(&["rank", "rm", "0"]));
    assert!(code == 1 && text.contains("mds.0") && text.contains("(EBUSY)"), "{text}");
    let (code, text) = failure(&run(&["rank", "rm", "mds.5"]));
    assert!(code == 1 && text.contains("mds.5"), "a wrong number is not passed over: {text}");
    assert_eq!(failure(&run(&["osd", "rm", "77"])).0, 1);
    assert_eq!(failure(&run(&["osd", "rm", "first"])).0, 2);
    assert_eq!(failure(&run(&["rank", "rm", "osd.1"])).0, 2);
}

fn files(mons: &str) {
    let mut put = Command::new(env!("CARGO_BIN_EXE_pando"));
    let mut put = put.args(["--mons", mons, "put", "-", "/f"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"hello").unwrap();
    assert!(put.wait().unwrap().success());
    let mut got = String::new();
    let output = pando(mons, &["get", "/f", "-"]);
    (&output.stdout[..]).read_to_string(&mut got).unwrap();
    assert_eq!(got, "hello");

    let dir = tempfile::tempdir().unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    std::fs::create_dir_all(tree.join("sub/empty")).unwrap();
    std::fs::write(tree.join("sub/large"), vec![3; 3_000_000]).unwrap();
    std::fs::write(tree.join("small"), "small").unwrap();
    std::os::unix::fs::symlink("small", tree.join("link")).unwrap();
    assert_eq!(failure(&pando(mons, &["put", tree.to_str().unwrap(), "/tree"])).0, 2);
    stdout(&pando(mons, &["put", "-r", tree.to_str().unwrap(), "/tree"]));
    assert_eq!(failure(&pando(mons, &["get", "/tree", back.to_str().unwrap()])).0, 1);
    stdout(&pando(mons, &["get", "-r", "/tree", back.to_str().unwrap()]));
    assert_eq!(std::fs::read(back.join("sub/large")).unwrap(), vec![3; 3_000_000]);
    assert_eq!(std::fs::read_link(back.join("link")).unwrap(), Path::new("small"));
    assert!(back.join("sub/empty").is_dir());
}

/// A put that is killed leaves what was there; one that replaces a file keeps its mode, and leaves nothing beside it.
fn whole_or_nothing(mons: &str) {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("large");
    let run = |args: &[&str]| stdout(&pando(mons, args));
    std::fs::write(&local, vec![1; 3_000_000]).unwrap();
    let local = local.to_str().unwrap();
    run(&["mkdir", "-p", "/whole"]);
    run(&["put", local, "/whole/file"]);
    let before = objects(&run(&["stat", "--json", "/whole/file"]));
    assert_eq!(run(&["ls", "/whole"]), "file\n", "nothing temporary is left");

    let mut put = Command::new(env!("CARGO_BIN_EXE_pando"));
    let mut put = put.args(["--mons", mons, "put", "-", "/whole/file"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = put.stdin.take().unwrap();
    input.write_all(&vec![2; 4 << 20]).unwrap();
    // It has begun, as more fits into no buffer on the way.
    put.kill().unwrap();
    put.wait().unwrap();
    let after = objects(&run(&["stat", "--json", "/whole/file"]));
    assert_eq!((&after[0]["ino"], &after[0]["size"]), (&before[0]["ino"], &3_000_000.into()));
    assert_eq!(pando(mons, &["cat", "/whole/file"]).stdout, vec![1; 3_000_000]);

    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(local, vec![3; 2_000_000]).unwrap();
    std::fs::set_permissions(local, std::fs::Permissions::from_mode(0o751)).unwrap();
    run(&["ln", "-s", "file", "/whole/link"]);
    run(&["put", local, "/whole/link"]);
    assert_eq!(pando(mons, &["cat", "/whole/file"]).stdout, vec![3; 2_000_000]);
    let replaced = objects(&run(&["stat", "--json", "/whole/file"]));
    assert_eq!((&replaced[0]["mode"], &replaced[0]["size"]), (&before[0]["mode"], &2_000_000.into()));
    run(&["put", local, "/whole/new"]);
    let (new, old) = (objects(&run(&["stat", "--json", "/whole/new"])), &before[0]["mode"]);
    assert_ne!(&new[0]["mode"], old);
    run(&["rm", "-r", "/whole"]);
}

/// A put of a large file that waits for more of it, when its temporary file is there.
fn half_put(mons: &str, to: &str) -> (Process, ChildStdin) {
    let mut put = Command::new(env!("CARGO_BIN_EXE_pando"));
    let mut put = Process::spawn(put.args(["--mons", mons, "put", "-", to])).unwrap();
    let mut input = put.take_stdin().unwrap();
    input.write_all(&vec![2; 4 << 20]).unwrap();
    let (dir, start) = (Path::new(to).parent().unwrap(), Instant::now());
    while !stdout(&pando(mons, &["ls", dir.to_str().unwrap()])).contains(".pando-put-") {
        assert!(start.elapsed() < LIMIT, "it begins in time");
    }
    (put, input)
}

/// Who is interrupted removes the temporary file. Who is killed cannot: the next one does it, when the session is over.
fn nothing_is_left(mons: &str) {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("large");
    std::fs::write(&local, vec![1; 1_000_000]).unwrap();
    let local = local.to_str().unwrap();
    let run = |args: &[&str]| stdout(&pando(mons, args));
    run(&["mkdir", "-p", "/left"]);
    for (signal, code) in interrupts() {
        let (mut put, _input) = half_put(mons, "/left/file");
        assert_eq!(put.end_by(signal, LIMIT).unwrap().code(), Some(code));
        assert_eq!(run(&["ls", "/left"]), "", "{signal:?}");
    }
    let (mut put, _input) = half_put(mons, "/left/file");
    let killed = format!("pid {}", put.id());
    put.kill();
    run(&["put", local, "/left/first"]);
    assert!(run(&["ls", "/left"]).contains(".pando-put-"), "it might still be at work");
    let sessions = objects(&run(&["session", "ls", "--json"]));
    let of_killed = |one: &&Value| one["description"].as_str().is_some_and(|text| text.ends_with(&killed));
    let session = sessions.iter().find(of_killed).expect("its session")["id"].to_string();
    run(&["session", "evict", &session]);
    // Not all names that begin so are of a put.
    run(&["put", local, "/left/.pando-put-1"]);
    run(&["put", local, "/left/second"]);
    assert_eq!(run(&["ls", "/left"]), ".pando-put-1\nfirst\nsecond\n");
    run(&["rm", "-r", "/left"]);
}

/// As `nohup` has it: who started it did not want it to end with the terminal.
#[test]
fn an_ignored_hangup_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plain = up_command(&dir.path().join("data"), &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    let up = Up::run(shell);
    up.process.signal(Signal::HUP);
    assert_eq!(objects(&stdout(&pando(&up.mons, &["status", "--json"]))).len(), 1);
    assert_eq!(up.stop(), Some(0));
    if ignores_hangups() {
        return;
    }
    let mut up = Up::start(&dir.path().join("data"));
    assert_eq!(up.process.end_by(Signal::HUP, LIMIT).unwrap().code(), Some(0), "a clean stop");
}

fn names_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// A get that is interrupted in the middle leaves what was there, and nothing beside it.
fn got_whole_or_not_at_all(up: &Up) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (source, to) = (dir.path().join("source"), dir.path().join("to"));
    let file = to.join("file");
    std::fs::create_dir(&to).unwrap();
    std::fs::write(&source, vec![1; 24 << 20]).unwrap();
    let run = |args: &[&str]| stdout(&pando(&up.mons, args));
    run(&["put", source.to_str().unwrap(), "/large"]);
    std::fs::write(&file, "old").unwrap();
    for (signal, code) in interrupts() {
        let start = Instant::now();
        // One that was quicker than the signal is tried again.
        while interrupted_get(up, &file, signal) != Some(code) {
            assert!(start.elapsed() < LIMIT, "one is interrupted in time by {signal:?}");
            assert_eq!(std::fs::metadata(&file).unwrap().len(), 24 << 20, "it came to its end");
            std::fs::write(&file, "old").unwrap();
        }
        assert_eq!((names_in(&to), std::fs::read_to_string(&file).unwrap().as_str()), (vec!["file".into()], "old"));
    }
    // What is refused changes nothing either.
    assert_eq!(failure(&pando(&up.mons, &["get", "/none", file.to_str().unwrap()])).0, 1);
    assert_eq!((names_in(&to), std::fs::read_to_string(&file).unwrap().as_str()), (vec!["file".into()], "old"));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("to/file", &link).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o604)).unwrap();
    run(&["get", "/large", link.to_str().unwrap()]);
    let mode = std::fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode, std::fs::read(&file).unwrap()), (0o604, vec![1; 24 << 20]));
    assert_eq!(names_in(&to), ["file"]);
    let piped = pando(&up.mons, &["get", "/large", "/dev/stdout"]);
    assert!(piped.status.success() && piped.stdout == vec![1; 24 << 20]);
    run(&["rm", "/large"]);
}

/// Stops the cluster when a get has begun, sends it a signal, and has the cluster go on. The exit code.
fn interrupted_get(up: &Up, to: &Path, signal: Signal) -> Option<i32> {
    let mut get = Command::new(env!("CARGO_BIN_EXE_pando"));
    let mut get = Process::spawn(get.args(["--mons", &up.mons, "get", "/large"]).arg(to)).unwrap();
    while names_in(to.parent().unwrap()).len() == 1 && !get.has_ended() {}
    up.process.signal(Signal::STOP);
    get.signal(signal);
    up.process.signal(Signal::CONT);
    get.wait(LIMIT).unwrap().code()
}

fn directories_do_not_go_into_themselves(mons: &str) {
    let run = |args: &[&str]| stdout(&pando(mons, args));
    run(&["mkdir", "-p", "/itself/sub/deep"]);
    run(&["ln", "-s", "/itself/sub", "/itself-link"]);
    for args in [
        &["mv", "/itself", "/itself/sub"][..],
        &["mv", "/itself", "/itself/new"],
        &["mv", "/itself", "/itself-link/new"],
        &["mv", "--exchange", "/itself", "/itself/sub/deep"],
        &["mv", "--exchange", "/itself/sub/deep", "/itself"],
    ] {
        let (code, text) = failure(&pando(mons, args));
        let told = "/itself: a directory cannot be moved into itself, and /itself";
        assert!(code == 1 && text.contains(told), "{args:?}: {code}: {text}");
    }
    run(&["mv", "/itself-link", "/itself/sub"]);
    run(&["rm", "-r", "/itself"]);
}

/// What is named as a mon, and is something else of the cluster.
fn no_mon(mons: &str) {
    for daemons in ["rank", "osd"] {
        let listed = objects(&stdout(&pando(mons, &[daemons, "ls", "--json"])));
        let address = listed[0]["address"].as_str().expect("an address");
        for args in [&["status"][..], &["ls"], &["rank", "ls"], &["subtree", "ls"], &["put", "/dev/null", "/x"]] {
            let (code, text) = failure(&pando(address, args));
            let told = format!("{address} answers, but is not a mon: is it a rank or an OSD?");
            assert!(code == 2 && text.contains(&told), "{args:?}: {code}: {text}");
        }
        assert_eq!(objects(&stdout(&pando(&format!("{address},{mons}"), &["status", "--json"]))).len(), 1);
    }
}

fn cluster(mons: &str) {
    let status = objects(&stdout(&pando(mons, &["status", "--json"])));
    assert_eq!((&status[0]["osds_up"], &status[0]["ranks_up"]), (&1.into(), &1.into()));
    assert!(stdout(&pando(mons, &["status"])).contains("1 of 1 up"));
    assert!(objects(&stdout(&pando(mons, &["df", "--json"])))[0]["total_bytes"].as_u64().unwrap() > 0);
    assert_eq!(objects(&stdout(&pando(mons, &["osd", "ls", "--json"]))).len(), 1);
    assert_eq!(objects(&stdout(&pando(mons, &["rank", "ls", "--json"]))).len(), 1);
    assert!(stdout(&pando(mons, &["pg", "ls", "--pool", "data"])).lines().count() > 1);
    assert_eq!(failure(&pando(mons, &["pg", "ls", "--pool", "none"])).0, 2);
    assert_eq!(objects(&stdout(&pando(mons, &["subtree", "ls", "--json"])))[0]["id"], 1);
    stdout(&pando(mons, &["setting", "set", "inline_limit", "8192"]));
    assert_eq!(stdout(&pando(mons, &["setting", "get", "inline_limit"])), "8192\n");
    assert!(stdout(&pando(mons, &["setting", "list"])).contains("object_size"));
    let (code, text) = failure(&pando(mons, &["setting", "set", "inline_limit", "-1"]));
    assert_eq!(code, 2, "{text}");
    let (code, text) = failure(&pando(mons, &["setting", "set", "inline_limit", "99G"]));
    assert!(code == 2 && text.contains("from 0 to 262144"), "{text}");
    assert_eq!(failure(&pando(mons, &["setting", "get", "none"])).0, 1);
}

#[test]
fn wrong_usage_and_an_unreachable_cluster_have_their_own_codes() {
    assert_eq!(failure(&pando("127.0.0.1:1", &["nonsense"])).0, 2);
    assert_eq!(failure(&pando("127.0.0.1:1", &["up", "--osds", "0"])).0, 2);
    assert_eq!(failure(&pando("127.0.0.1:1", &["up", "--mons", "10.0.0.1:7100"])).0, 2);
    let (code, text) = failure(&pando("127.0.0.1:1", &["--timeout", "1", "ls"]));
    assert_eq!(code, 3);
    assert!(text.contains("no mon answers at 127.0.0.1:1") && text.contains("pando up"), "{text}");
    assert_eq!(failure(&pando("127.0.0.1:1", &["--timeout", "1", "status"])).0, 3);
}

/// Exit code 2, and a message that says what to do. Nothing is made.
#[test]
fn wrong_usage_is_told_with_a_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let usage = |mons: &str, args: &[&str], told: &str| {
        let (code, text) = failure(&pando(mons, args));
        assert!(code == 2 && text.contains(told), "{args:?}: {code}: {text}");
    };
    usage("", &["--mons", "x y", "ls"], "--mons takes HOST:PORT");
    usage("", &["--mons", "127.0.0.1", "status"], "--mons takes HOST:PORT");
    usage("", &["--mons", ",", "ls"], "--mons takes HOST:PORT");
    usage("no address", &["ls"], "$PANDO_MONS takes HOST:PORT");
    usage("", &["--timeout", "0", "ls"], "1..=86400");
    for (flags, told) in [
        (&["--mons", "2"][..], "1, 3 or 5"),
        (&["--mons-count", "4"], "1, 3 or 5"),
        (&["--replicas", "3", "--osds", "2"], "--osds 3 or --replicas 2"),
        (&["--inline-limit", "99G"], "at most 256K"),
        (&["--inline-limit", "4x"], "K, M or G"),
        (&["--mds-cache-bytes", "0"], "at least 1M"),
        (&["--osds", "65"], "1..=64"),
        (&["--mds", "65"], "1..=64"),
        (&["--mons", "3", "--mon-port", "65534"], "at most 65533"),
        (&["--engine", "tape"], "fjall"),
    ] {
        usage("", &[&["up", "--data", data.to_str().unwrap()], flags].concat(), told);
        assert!(!data.exists(), "{flags:?} leaves nothing behind");
    }
    std::fs::write(dir.path().join("precious"), "").unwrap();
    usage("", &["up", "--data", dir.path().to_str().unwrap()], "choose another directory");
    usage("", &["up", "--data", dir.path().join("precious").to_str().unwrap()], "not a directory");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A mon that takes connections and says nothing.
#[test]
fn the_timeout_covers_connecting() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mons = mute.local_addr().unwrap().to_string();
    for verb in ["ls", "status"] {
        let start = Instant::now();
        let (code, text) = failure(&pando(&mons, &["--timeout", "1", verb]));
        assert!(code == 3 && text.contains("pando status"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(5), "less than without the flag");
    }
}

#[test]
fn a_directory_runs_in_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let up = Up::start(&data);
    let (code, text) = up_failure(&data);
    let told = format!("another `pando up` uses this directory (pid {})", up.process.id());
    assert!(code == 1 && text.contains(&told), "{text}");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(Up::start(&data).stop(), Some(0));
}

/// Stops a cluster and returns its id.
fn made(data: &Path) -> String {
    let up = Up::start(data);
    let status = objects(&stdout(&pando(&up.mons, &["status", "--json"])));
    assert_eq!(up.stop(), Some(0));
    status[0]["cluster_id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_lost_or_swapped_directory_is_told_by_the_names_of_the_clusters() {
    let dir = tempfile::tempdir().unwrap();
    let (data, other) = (dir.path().join("data"), dir.path().join("other"));
    let (id, other_id) = (made(&data), made(&other));
    for part in ["mon.0", "osd.0"] {
        let (path, kept) = (data.join(part), dir.path().join("kept"));
        std::fs::rename(&path, &kept).unwrap();
        std::fs::rename(other.join(part), &path).unwrap();
        let (code, text) = up_failure(&data);
        assert!(code == 1 && text.contains(path.to_str().unwrap()), "{part}: {code}: {text}");
        assert!(text.contains(&id) && text.contains(&other_id), "{part}: {text}");
        std::fs::rename(&path, other.join(part)).unwrap();
        std::fs::rename(&kept, &path).unwrap();
    }
    let (path, kept) = (data.join("mon.0"), dir.path().join("kept"));
    std::fs::rename(&path, &kept).unwrap();
    let (code, text) = up_failure(&data);
    assert!(code == 1 && text.contains(&id) && text.contains("mon.0 is missing"), "{text}");
    assert!(!path.exists());
    std::fs::rename(&kept, &path).unwrap();
    assert_eq!(made(&data), id, "all is as before");
}

#[test]
fn a_cluster_in_memory_promises_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(["up", "--engine", "memory", "--mon-port", "0", "--osds", "1"]).current_dir(dir.path());
    let stopped = {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Ends at the latest with the process.
        let announced: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("Ctrl-C")).collect();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        format!("{}\n{}", announced.join("\n"), String::from_utf8_lossy(&output.stderr))
    };
    assert!(stopped.contains("Pando is up. All files are in memory"), "{stopped}");
    assert!(stopped.contains("stopping; all files were in memory"), "{stopped}");
    assert!(!stopped.contains("stays in") && !stopped.contains("Data in"), "{stopped}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is kept");
}

/// What a log file gets: no colours, and no chatter of the storage engine.
#[test]
fn a_log_file_is_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = up_command(&dir.path().join("data"), &["-v", "--mds-cache-bytes", "1M"]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let up = Up::run(command);
    stdout(&pando(&up.mons, &["mkdir", "/d"]));
    assert_eq!(up.stop(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(" INFO pando"), "it logs: {text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let chatter = text.lines().find(|line| line.contains(" INFO fjall") || line.contains(" INFO lsm_tree"));
    assert_eq!(chatter, None);
}

#[test]
fn an_occupied_port_is_told_with_a_way_out() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (code, text) = failure(&pando("", &["up", "--mon-port", &port, "--data", data.to_str().unwrap()]));
    assert_eq!(code, 1);
    assert!(text.contains("in use") && text.contains("choose another"), "{text}");
}

/// All but their load.
fn subtrees(mons: &str) -> Vec<Value> {
    let mut all = objects(&stdout(&pando(mons, &["subtree", "ls", "--json"])));
    for subtree in &mut all {
        for load in ["ops_per_s", "busy_permille", "cached_inodes"] {
            subtree.as_object_mut().expect("an object").remove(load).expect("a field that stays");
        }
    }
    all
}

fn subtree_at(mons: &str, path: &str) -> Option<Value> {
    subtrees(mons).into_iter().find(|subtree| subtree["path"] == path)
}

#[test]
fn subtrees_are_split_moved_explained_and_merged() {
    let dir = tempfile::tempdir().unwrap();
    let up = Up::run(up_command(&dir.path().join("data"), &["--mds", "3"]));
    let run = |args: &[&str]| stdout(&pando(&up.mons, args));
    let refused = |args: &[&str]| failure(&pando(&up.mons, args));
    // Nobody else moves anything.
    run(&["balancer", "off"]);
    assert_eq!(run(&["setting", "get", "balancer_mode"]), "0\n");
    run(&["mkdir", "-p", "/a/b/c", "/a/d"]);
    run(&["ln", "-s", "/a", "/link"]);
    let local = dir.path().join("local");
    std::fs::write(&local, "hello").unwrap();
    run(&["put", local.to_str().unwrap(), "/a/b/c/file"]);

    assert!(run(&["subtree", "split", "/a/b"]).starts_with("subtree."));
    let split = subtree_at(&up.mons, "/a/b").expect("it is listed");
    assert_eq!((&split["parent"], &split["owner"]), (&1.into(), &0.into()));
    let (code, text) = refused(&["subtree", "split", "/a/b"]);
    assert!(code == 1 && text.contains("/a/b") && text.contains("root of a subtree"), "{text}");
    assert_ne!(refused(&["subtree", "split", "/a/b/c/file"]).0, 0);
    assert_eq!(refused(&["subtree", "split", "/none"]).0, 1);
    assert_eq!(subtrees(&up.mons).len(), 2, "what was refused changes nothing");

    run(&["subtree", "move", "/a/b", "mds.1"]);
    assert_eq!(subtree_at(&up.mons, "/a/b").unwrap()["owner"], 1);
    assert_eq!(run(&["cat", "/a/b/c/file"]), "hello");
    run(&["put", local.to_str().unwrap(), "/a/b/c/other"]);
    let explained = &objects(&run(&["subtree", "explain", "/link/b/c/file", "--json"]))[0];
    assert_eq!((&explained["subtree"]["owner"], &explained["state"]), (&1.into(), &"up".into()));
    assert_eq!(explained["address"], objects(&run(&["rank", "ls", "--json"]))[1]["address"]);
    let text = run(&["subtree", "explain", "/a/b/c/file"]);
    assert!(text.contains("(/a/b), in it at c/file") && text.contains("mds.1 at "), "{text}");
    let id = format!("subtree.{}", split["id"]);
    let by_id = &objects(&run(&["subtree", "explain", &id, "--json"]))[0];
    assert_eq!((&by_id["given"], &by_id["ino"], &by_id["inside"]), (&id.into(), &split["root_ino"], &"".into()));
    assert_eq!((&by_id["address"], &by_id["subtree"]["id"]), (&explained["address"], &split["id"]));
    assert!(run(&["subtree", "explain", &split["id"].to_string()]).contains("(/a/b), its root"));
    odd_names(&up.mons);
    nothing_else_is_moved(&up.mons);

    // The way to a directory may lead through symlinks and other subtrees.
    run(&["subtree", "split", "/link/b/c"]);
    let (b, c) = (subtree_at(&up.mons, "/a/b").unwrap(), subtree_at(&up.mons, "/a/b/c").unwrap());
    assert_eq!((&c["parent"], &c["owner"]), (&b["id"], &1.into()));
    let listed = run(&["subtree", "ls"]);
    assert!(listed.lines().nth(3).is_some_and(|line| line.ends_with("    /a/b/c")), "{listed}");
    assert_ne!(refused(&["subtree", "merge", "/a/b"]).0, 0, "it has children");
    run(&["subtree", "merge", "/a/b/c"]);
    assert_ne!(refused(&["subtree", "merge", "/a/b"]).0, 0, "its parent is with another rank");
    run(&["subtree", "move", "/a/b", "0"]);
    run(&["subtree", "merge", &format!("subtree.{}", b["id"])]);
    assert_eq!(subtrees(&up.mons).len(), 1);
    assert_eq!(run(&["cat", "/a/b/c/other"]), "hello");
    assert_eq!(up.stop(), Some(0));
}

/// Paths are bytes.
fn odd_names(mons: &str) {
    use std::os::unix::ffi::OsStrExt as _;
    let odd = std::ffi::OsStr::from_bytes(b"/odd\xff");
    let run = |words: &[&str], rest: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
        command.args(words).arg(odd).args(rest).env("PANDO_MONS", mons);
        stdout(&command.output().expect("the command runs"))
    };
    run(&["mkdir"], &[]);
    run(&["subtree", "split"], &[]);
    run(&["subtree", "move"], &["mds.2"]);
    run(&["subtree", "pin"], &["2"]);
    let explained = &objects(&run(&["subtree", "explain", "--json"], &[]))[0];
    assert_eq!((&explained["subtree"]["owner"], &explained["subtree"]["pin"]), (&2.into(), &2.into()));
    assert_eq!((&explained["given"], &explained["escaped"]), (&"/odd\\xff".into(), &true.into()));
    run(&["subtree", "unpin"], &[]);
    run(&["subtree", "move"], &["0"]);
    run(&["subtree", "merge"], &[]);
    run(&["rm", "-r"], &[]);
}

/// Bad input is refused, and changes nothing.
fn nothing_else_is_moved(mons: &str) {
    let refused = |args: &[&str]| failure(&pando(mons, args));
    let before = subtrees(mons);
    for (args, code, told) in [
        (&["subtree", "move", "/a/b", "9"][..], 1, "mds.9"),
        (&["subtree", "move", "subtree.99", "1"], 1, "subtree.99"),
        (&["subtree", "merge", "99"], 1, "subtree.99"),
        (&["subtree", "move", "/a/d", "1"], 1, "pando subtree split"),
        (&["subtree", "move", "/none", "1"], 1, "ENOENT"),
        (&["subtree", "move", "a/b", "1"], 2, "subtree.7"),
        (&["subtree", "pin", "/a/b", "9"], 1, "mds.9"),
        (&["rank", "drain", "9"], 1, "mds.9"),
        (&["rank", "rm", "9"], 1, "mds.9"),
        (&["subtree", "explain", "/a/b/none"], 1, "/a/b/none: "),
        (&["subtree", "explain", "99"], 1, "subtree.99"),
        (&["rm", "/a/b/c/none"], 1, "/a/b/c/none: "),
        (&["mv", "/a/none", "/a/b/c/x"], 1, "pando: /a/none: no such file"),
        (&["mv", "/a/b/c/none", "/a/d/x"], 1, "pando: /a/b/c/none: no such file"),
        (&["mv", "/a/b/c/file", "/a/none/x"], 1, "pando: /a/none/x: no such file"),
        (&["session", "evict", "99999"], 1, "client.99999"),
        (&["session", "evict", "x"], 2, "client.7"),
    ] {
        let (got, text) = refused(args);
        assert!(got == code && text.contains(told), "{args:?}: {got}: {text}");
    }
    assert_eq!(subtrees(mons), before);
    let there = objects(&stdout(&pando(mons, &["subtree", "move", "/a/b", "1", "--json"])));
    assert_eq!(there[0]["move_id"], 0, "it is there already");
}

#[test]
fn ranks_are_pinned_to_drained_and_balanced() {
    let dir = tempfile::tempdir().unwrap();
    let up = Up::run(up_command(&dir.path().join("data"), &["--mds", "2"]));
    let run = |args: &[&str]| stdout(&pando(&up.mons, args));
    run(&["balancer", "manual"]);
    run(&["setting", "set", "balancer_interval_millis", "100"]);
    run(&["mkdir", "-p", "/a"]);
    run(&["subtree", "split", "/a"]);
    let wait_for_owner = |owner: u32| {
        let start = Instant::now();
        while subtree_at(&up.mons, "/a").expect("it stays a subtree")["owner"] != owner {
            assert!(start.elapsed() < LIMIT, "it comes to mds.{owner} in time");
        }
    };
    run(&["subtree", "pin", "/a", "1"]);
    assert_eq!(subtree_at(&up.mons, "/a").unwrap()["pin"], 1);
    wait_for_owner(1);
    let log = objects(&run(&["balancer", "log", "--json"]));
    let moved = |decision: &Value| decision["moves"].as_array().is_some_and(|moves| !moves.is_empty());
    assert!(log.iter().any(moved), "the decision is kept: {log:?}");
    let explained = &objects(&run(&["subtree", "explain", "/a", "--json"]))[0];
    assert!(explained["since_ns"].as_i64().is_some_and(|at| at > 0), "{explained}");
    assert!(run(&["balancer", "log", "-n", "1"]).contains("mds.0"));

    let warned = |args: &[&str]| {
        let output = pando(&up.mons, args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && output.stdout.is_empty(), "{args:?}: {text}");
        text
    };
    assert_eq!(warned(&["subtree", "unpin", "/a"]), "");
    assert_eq!(subtree_at(&up.mons, "/a").unwrap()["pin"], Value::Null);
    assert!(warned(&["subtree", "unpin", "/a"]).contains("was not pinned"));
    assert!(warned(&["subtree", "spread", "/a", "--off"]).contains("was not spread"));
    assert!(warned(&["rank", "undrain", "1"]).contains("mds.1 was not being drained"));
    assert_eq!(warned(&["rank", "drain", "mds.1"]), "");
    assert!(run(&["rank", "ls"]).contains("up, draining"));
    wait_for_owner(0);
    assert_ne!(failure(&pando(&up.mons, &["subtree", "move", "/a", "1"])).0, 0, "a draining rank gets nothing");
    assert!(warned(&["rank", "drain", "0"]).contains("the subtrees of mds.0 stay where they are"));
    assert_eq!(warned(&["rank", "undrain", "0"]) + &warned(&["rank", "undrain", "1"]), "");
    assert!(!run(&["rank", "ls"]).contains("draining"));
    assert_eq!(warned(&["subtree", "spread", "/a"]), "");
    assert_eq!(subtree_at(&up.mons, "/a").unwrap()["spread"], true);
    let told = warned(&["subtree", "unpin", "/a"]);
    assert!(told.contains("is spread as before") && told.contains("--off` ends that"), "{told}");
    run(&["subtree", "spread", "/a", "--off"]);
    assert_eq!(subtree_at(&up.mons, "/a").unwrap()["spread"], false);
    run(&["balancer", "off"]);
    assert!(warned(&["subtree", "pin", "/a", "0"]).contains("the balancer is off"));
    assert!(warned(&["subtree", "spread", "/a"]).contains("the balancer is off"));
    run(&["balancer", "auto"]);
    assert_eq!(run(&["setting", "get", "balancer_mode"]), "2\n");
    assert_eq!(up.stop(), Some(0));
}
