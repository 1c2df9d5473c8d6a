//! `put` and `get`: whole or not at all, whatever comes between.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use pando_local_cluster::process::{Process, interrupts};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;

use crate::{LIMIT, Up, failure, objects, pando, stdout};

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

pub fn files(mons: &str) {
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
    // Without a name of its own it is the content that is meant.
    for content in [tree.join("."), tree.join("./"), tree.join("sub/..")] {
        stdout(&pando(mons, &["mkdir", "/content"]));
        stdout(&pando(mons, &["put", "-r", content.to_str().unwrap(), "/content"]));
        assert_eq!(stdout(&pando(mons, &["ls", "/content"])), stdout(&pando(mons, &["ls", "/tree"])));
        stdout(&pando(mons, &["rm", "-r", "/content"]));
    }
}

/// A put that is killed leaves what was there; one that replaces a file keeps its mode, and leaves nothing beside it.
pub fn whole_or_nothing(mons: &str) {
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
pub fn nothing_is_left(mons: &str) {
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

fn names_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// A get that is interrupted in the middle leaves what was there, and nothing beside it.
pub fn got_whole_or_not_at_all(up: &Up) {
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

/// Somebody who may rename in a tree that is being copied puts a symlink in the place of a directory that was listed.
pub fn a_copy_stays_in_its_tree(mons: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (large, to) = (dir.path().join("large"), dir.path().join("tree"));
    std::fs::write(&large, vec![1; 4 << 20]).unwrap();
    let run = |args: &[&str]| stdout(&pando(mons, args));
    run(&["mkdir", "-p", "/out/tree/sub", "/out/kept"]);
    for file in ["/out/tree/file", "/out/kept/secret"] {
        run(&["put", large.to_str().unwrap(), file]);
    }
    std::fs::create_dir(&to).unwrap();
    let pipe = to.join("file");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut get = Command::new(env!("CARGO_BIN_EXE_pando"));
    let mut get = Process::spawn(get.args(["--mons", mons, "get", "-r", "/out/tree"]).arg(dir.path())).unwrap();
    let ((opened, was_opened), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let reader = std::thread::spawn(move || {
        // Until there is a writer.
        let mut pipe = std::fs::File::open(pipe).unwrap();
        opened.send(()).unwrap();
        may_go_on.recv().unwrap();
        std::io::copy(&mut pipe, &mut std::io::sink()).unwrap()
    });
    was_opened.recv_timeout(LIMIT).expect("the copy begins in time");
    // More than a pipe holds is to come before it goes on to the directory.
    run(&["mv", "/out/tree/sub", "/out/moved"]);
    run(&["ln", "-s", "/out/kept", "/out/tree/sub"]);
    go_on.send(()).unwrap();
    assert_eq!(reader.join().unwrap(), 4 << 20);
    assert_eq!((get.wait(LIMIT).unwrap().code(), names_in(&to)), (Some(1), vec!["file".to_owned()]));
    run(&["rm", "-r", "/out"]);
}

/// What is a symlink in the cluster now may be a directory or a file the next time.
pub fn no_copy_goes_where_an_earlier_one_has_put_a_symlink(mons: &str) {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (outside, kept, local) = (dir.path().join("outside"), dir.path().join("kept"), dir.path().to_str().unwrap());
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(&kept, "kept").unwrap();
    let (small, large) = (dir.path().join("small"), dir.path().join("large"));
    std::fs::write(&small, "new").unwrap();
    std::fs::write(&large, vec![1; 1_000_000]).unwrap();
    let run = |args: &[&str]| stdout(&pando(mons, args));
    run(&["mkdir", "/again"]);
    run(&["ln", "-s", outside.to_str().unwrap(), "/again/sub"]);
    run(&["ln", "-s", kept.to_str().unwrap(), "/again/file"]);
    run(&["ln", "-s", outside.join("none").to_str().unwrap(), "/again/dangling"]);
    run(&["get", "-r", "/again", local]);
    run(&["rm", "/again/sub", "/again/file", "/again/dangling"]);
    run(&["mkdir", "/again/sub"]);
    for file in ["/again/sub/file", "/again/file", "/again/dangling"] {
        run(&["put", small.to_str().unwrap(), file]);
    }
    let (code, text) = failure(&pando(mons, &["get", "-r", "/again", local]));
    assert!(code == 1 && text.contains("/again/sub: "), "{text}");
    assert_eq!((names_in(&outside), std::fs::read_to_string(&kept).unwrap().as_str()), (vec![], "kept"));
    for file in ["again/file", "again/dangling"] {
        let got = dir.path().join(file);
        assert!(std::fs::symlink_metadata(&got).unwrap().is_file(), "{file} has taken the symlink's place");
        assert_eq!(std::fs::read_to_string(&got).unwrap(), "new");
    }
    run(&["rm", "-r", "/again"]);

    let tree = dir.path().join("twice");
    std::fs::create_dir(&tree).unwrap();
    run(&["mkdir", "/outside"]);
    run(&["put", kept.to_str().unwrap(), "/kept"]);
    let files = [("small", "/kept", &small), ("large", "/kept", &large), ("dangling", "/outside/none", &small)];
    for (name, to, _) in files.into_iter().chain([("sub", "/outside", &small)]) {
        symlink(to, tree.join(name)).unwrap();
    }
    run(&["put", "-r", tree.to_str().unwrap(), "/"]);
    for (name, _, content) in files {
        std::fs::remove_file(tree.join(name)).unwrap();
        std::fs::copy(content, tree.join(name)).unwrap();
    }
    std::fs::remove_file(tree.join("sub")).unwrap();
    std::fs::create_dir(tree.join("sub")).unwrap();
    std::fs::write(tree.join("sub/file"), "").unwrap();
    // The second time they replace files.
    for _ in 0..2 {
        let (code, text) = failure(&pando(mons, &["put", "-r", tree.to_str().unwrap(), "/"]));
        assert_eq!((code, text.as_str()), (1, "pando: /twice/sub: not a directory (ENOTDIR)"));
        assert_eq!(run(&["ls", "/outside"]), "");
        assert!(run(&["cat", "/kept"]) == "kept", "what a symlink led to has been overwritten");
        for (name, _, content) in files {
            assert_eq!(objects(&run(&["stat", "--json", &format!("/twice/{name}")]))[0]["kind"], "file", "{name}");
            assert!(pando(mons, &["cat", &format!("/twice/{name}")]).stdout == std::fs::read(content).unwrap());
        }
    }
    run(&["rm", "-r", "/twice", "/outside", "/kept"]);
}
