//! kill -9 in the middle of commits: all that was acknowledged is there afterwards, and nothing is torn (I1, I10).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use pando_osd::engine::{self, Change, Engine, EngineKind, Transaction};

use crate::store::{PG, object, options, put, write};

const CHILD: &str = "PANDO_ENGINE_CRASH_CHILD";
/// Objects that are overwritten again and again; those made once come after.
const OVERWRITTEN: u64 = 3;
/// Not a whole number of blocks, so that overwrites meet partial ones.
const OVERWRITTEN_BYTES: usize = 40_000;
/// Enough for the file engine to write them straight into their file.
const MADE_ONCE_BYTES: usize = 100_000;

fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    number.to_be_bytes().iter().copied().cycle().take(bytes).collect()
}

fn key(number: u64) -> Vec<u8> {
    format!("n/{number:08}").into_bytes()
}

/// The commit after `last` consists of three transactions with the numbers after it.
fn transactions(last: u64) -> Vec<Transaction> {
    (last + 1..=last + 3)
        .map(|number| {
            let made_once = object(OVERWRITTEN + number);
            let mut changes = vec![
                put(&key(number), &number.to_be_bytes()),
                put(b"last", &number.to_be_bytes()),
                write(object(number % OVERWRITTEN), 0, &pattern(number, OVERWRITTEN_BYTES)),
                write(made_once, 0, &pattern(number, MADE_ONCE_BYTES)),
            ];
            if number > 20 {
                changes.push(Change::Forget { object: object(OVERWRITTEN + number - 20) });
            }
            Transaction { pg: PG, changes }
        })
        .collect()
}

fn last(engine: &dyn Engine) -> u64 {
    let stored = engine.get(PG, b"last").unwrap();
    stored.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
}

/// Not a test by itself: the process that is killed.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (kind, dir) = what.split_once(':').unwrap();
    let (engine, _directory) = engine::open(kind.parse().unwrap(), Path::new(dir), &options()).unwrap();
    let mut number = last(&*engine);
    let mut out = std::io::stdout();
    loop {
        engine.commit(&transactions(number)).unwrap();
        number += 3;
        writeln!(out, "\nacknowledged {number}").unwrap();
        out.flush().unwrap();
    }
}

/// Runs the child until it has acknowledged `commits` more; returns the last number it acknowledged before it died.
fn run_and_kill(kind: EngineKind, dir: &Path, commits: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{kind}:{}", dir.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut numbers = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("acknowledged ")?.parse().ok());
    let mut acknowledged = numbers.by_ref().take(commits).last().expect("the child died by itself");
    // Not always at the same point of a commit.
    std::thread::sleep(Duration::from_nanos(u64::from(at_random()) % 10_000_000));
    child.kill().unwrap();
    // Some more may have been acknowledged before the signal came.
    for number in numbers {
        acknowledged = number;
    }
    child.wait().unwrap();
    acknowledged
}

fn at_random() -> u32 {
    std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()
}

fn check(engine: &dyn Engine, acknowledged: u64) {
    let last = last(engine);
    assert!(last >= acknowledged, "{acknowledged} was acknowledged, {last} is the last");
    assert_eq!(last % 3, 0, "a commit of three transactions is whole");
    let page = engine.scan(PG, b"n/", b"n0", usize::MAX, usize::MAX).unwrap();
    let expected: Vec<_> =
        (1..=last).map(|number| (Bytes::from(key(number)), Bytes::from(number.to_be_bytes().to_vec()))).collect();
    assert_eq!(page.records, expected);
    let mut objects: Vec<_> = (last.saturating_sub(2)..=last)
        .filter(|number| *number > 0)
        .map(|number| (object(number % OVERWRITTEN), number, OVERWRITTEN_BYTES))
        .collect();
    objects.extend(
        (last.saturating_sub(20) + 1..=last).map(|number| (object(OVERWRITTEN + number), number, MADE_ONCE_BYTES)),
    );
    for (object, number, length) in &objects {
        let bytes = engine.read(PG, *object, 0, u64::MAX).unwrap();
        assert!(bytes == pattern(*number, *length), "object {object} is not that of transaction {number}");
    }
    assert_eq!(engine.list_objects(PG, None, 1000).unwrap().len(), objects.len());
}

fn killed_again_and_again(kind: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    for commits in [1, 2, 30, 7, 60, 3, 4, 5, 6, 8] {
        let acknowledged = run_and_kill(kind, dir.path(), commits);
        let (engine, _directory) = engine::open(kind, dir.path(), &options()).unwrap();
        check(&*engine, acknowledged);
    }
}

#[test]
fn fjall_keeps_what_it_acknowledged_through_kill_9() {
    killed_again_and_again(EngineKind::Fjall);
}

#[test]
fn file_keeps_what_it_acknowledged_through_kill_9() {
    killed_again_and_again(EngineKind::File);
}
