//! Wrong usage, and a cluster that is not there.

use std::time::{Duration, Instant};

use crate::{failure, pando};

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
