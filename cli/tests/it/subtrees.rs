//! Subtrees and ranks: split, moved, pinned, drained, merged.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::{LIMIT, Up, failure, objects, pando, stdout, up_command};

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
    without_attributes(&up.mons);
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

/// Who may list a directory but not search it sees names, be they of roots of subtrees or not.
fn without_attributes(mons: &str) {
    let run = |args: &[&str]| stdout(&pando(mons, args));
    run(&["mkdir", "-m", "744", "/closed"]);
    run(&["mkdir", "/closed/one", "/closed/two"]);
    let listed = |flags: &[&str]| {
        let output = pando(mons, &[&["--uid", "9", "ls"], flags, &["/closed"]].concat());
        (failure(&output), String::from_utf8(output.stdout).expect("text"))
    };
    let lines = |code, text: &str, lines: &[&str]| ((code, text.to_owned()), lines.concat());
    let long = lines(
        1,
        "pando: /closed: only names are shown: no permission to search the directory (EACCES); `pando ls -l` shows who may, `--uid 0` acts as root",
        &["one", "two"]
            .map(|name| format!("d?????????   ?     ?     ?            ?                   ? {name}\n"))
            .each_ref()
            .map(String::as_str),
    );
    let short = lines(0, "", &["one\n", "two\n"]);
    assert_eq!((listed(&["-l"]), listed(&[])), (long.clone(), short.clone()));
    run(&["subtree", "split", "/closed/two"]);
    assert_eq!((listed(&["-l"]), listed(&[])), (long, short));
    let all = objects(&run(&["ls", "-l", "--json", "/closed"]));
    assert!(all.iter().all(|entry| entry["mode"] == 0o755), "root sees all");
    run(&["subtree", "merge", "/closed/two"]);
    run(&["rm", "-r", "/closed"]);
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
