//! What makes no sense is told before anything starts, with exit code 2 and nothing left behind.

use crate::ranks::loadgen;

fn refused(cases: &[(&str, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    for (words, told) in cases {
        let output = loadgen(words, dir.path());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(told), "{words}: {err}");
        assert!(output.stdout.is_empty(), "{words}: it has not run");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{words}");
    }
}

#[test]
fn options_that_mean_nothing_together_are_refused() {
    refused(&[
        ("replay --target pando:127.0.0.1:1 --osds 1", "--osds is for a cluster in this process"),
        ("replay --target posix:. --engine memory", "--engine is for a cluster in this process"),
        ("small-files --target posix:. --mds-cache-mib 5", "--mds-cache-mib is for a cluster in this process"),
        ("verify-acks acks --target posix:. --data .", "--data is for a cluster in this process"),
        ("replay --mds-pid 1", "--mds-pid is for a running cluster"),
        ("replay --target posix:. --client-threads 2", "--client-threads is for clients of Pando"),
        ("small-files --target posix:. --deadline 2", "--deadline is for clients of Pando"),
        ("replay --phases build", "begin with the phase unpack"),
        ("replay --target posix:. --phases build,unpack", "in the order unpack, build, remove"),
        ("small-files --phases read", "begin with the phase create"),
        ("small-files --experiment inline-2013 --files 7", "cannot be used with"),
        ("small-files --experiment inline-2013 --deadline 7", "cannot be used with"),
        ("floor --seconds 0", "use more than 0"),
        ("floor --seconds NaN", "use more than 0"),
        ("floor --replicas 3", "leave --replicas away"),
        ("experiment multi-mds --spread false --rotate 5", "take no turns"),
        ("experiment multi-mds --phases build", "begin with the phase unpack"),
        ("rename --entries 50 --flat 50", "50 entries only"),
        ("rename --entries 50 --flat 5 --warm 51", "50 entries only"),
        ("failover --victim 3", "there is no rank 3"),
    ]);
}

#[test]
fn addresses_that_are_none_are_named() {
    refused(&[
        ("replay --target pando:garbage:x", "`garbage:x` is none"),
        ("replay --target pando:127.0.0.1:1,garbage", "`garbage` is none"),
        ("replay --target pando:garbage", "pando:HOST:PORT"),
    ]);
}

/// A run may take hours: it does not begin when what it finds could not be kept.
#[test]
fn files_that_cannot_be_written_are_told_before_the_run() {
    refused(&[
        ("replay --json none/report.json", "cannot write none/report.json"),
        ("small-files --json none/report.json", "cannot write none/report.json"),
        ("floor --json .", "cannot write .: it is a directory"),
        ("migrate --html none/report.html", "cannot write none/report.html"),
        ("failover --html .", "it is a directory"),
        ("rename --json none/report.json", "cannot write none/report.json"),
        ("experiment multi-mds --html none/report.html", "cannot write none/report.html"),
        ("replay --record-acks none/acks", "cannot write none/acks"),
        ("replay --json same --html same", "--json and --html name the same file"),
        ("replay --json same --record-acks same", "--json and --record-acks name the same file"),
    ]);
}
