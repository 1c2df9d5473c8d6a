//! What each verb does and says, against one cluster.

use crate::transfers::{
    a_copy_stays_in_its_tree, files, got_whole_or_not_at_all, no_copy_goes_where_an_earlier_one_has_put_a_symlink,
    nothing_is_left, whole_or_nothing,
};
use crate::{Up, failure, objects, pando, stdout};

#[test]
fn the_verbs_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let up = Up::start(&dir.path().join("data"));
    let run = |args: &[&str]| pando(&up.mons, args);
    files(&up.mons);
    whole_or_nothing(&up.mons);
    nothing_is_left(&up.mons);
    got_whole_or_not_at_all(&up);
    a_copy_stays_in_its_tree(&up.mons);
    no_copy_goes_where_an_earlier_one_has_put_a_symlink(&up.mons);
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
