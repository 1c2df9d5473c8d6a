//! Paths that lead through several subtrees (R15, R16).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pando_proto::mds::{
    Attr, Crossing, DirEntry, FileKind, ReaddirResponse, Redirect, StatResponse, Target, operation::Op,
    operation_result::Result as Answer,
};
use pando_proto::{Errno, Error as ProtoError, Reason};

use super::fake::{self, Act, Fake, Owned, Seen};
use super::{attr, correct, error, op};
use crate::ReadDirOptions;

pub(super) fn first_target(seen: &Seen) -> Target {
    let target = match op(seen) {
        Op::ReadFile(request) => &request.target,
        Op::Stat(request) => &request.target,
        Op::Open(request) => &request.target,
        Op::Unlink(request) => &request.target,
        Op::Rename(request) => &request.from,
        Op::Readdir(request) => &request.target,
        other => panic!("not in these tests: {other:?}"),
    };
    target.clone().unwrap()
}

pub(super) fn to(subtree: u64, base: u64, path: &str) -> Crossing {
    Crossing { subtree, subtree_epoch: 1, base, path: path.to_owned().into(), route: 1, ..Crossing::default() }
}

pub(super) fn redirect(crossings: Vec<Crossing>) -> Answer {
    Answer::Redirect(Redirect { subtree: 1, map_epoch: 1, crossings, ..Redirect::default() })
}

/// Subtrees of one tree: (parent, path from its root, subtree, root, route).
type Forest = Arc<Mutex<Vec<(u64, &'static str, u64, u64, u64)>>>;

fn forest(subtrees: &[(u64, &'static str, u64, u64, u64)]) -> Forest {
    Arc::new(Mutex::new(subtrees.to_vec()))
}

/// What a correct owner answers to an operation on a path.
fn walk(forest: &Forest, seen: &Seen) -> Answer {
    let target = first_target(seen);
    let path = std::str::from_utf8(&target.path).unwrap();
    let of_name = matches!(op(seen), Op::Unlink(_));
    for (parent, at, subtree, root, route) in forest.lock().unwrap().iter() {
        let Some(rest) = path.strip_prefix(at).filter(|_| *parent == seen.request.subtree) else { continue };
        if rest.starts_with('/') || (rest.is_empty() && !of_name) {
            let crossing = to(*subtree, *root, rest.trim_start_matches('/'));
            return redirect(vec![Crossing { consumed: at.len() as u32, route: *route, ..crossing }]);
        }
    }
    correct(seen)
}

async fn walking(rank: u32, forest: &Forest) -> Fake {
    let forest = Arc::clone(forest);
    Fake::start_rank(rank, 64, move |seen| vec![Act::Answer(walk(&forest, seen))]).await
}

const OTHER: Owned = Owned { subtree: 2, root: 200, owner: 1, epoch: 7, route: 5, split_from: None };
const BELOW: Owned = Owned { subtree: 3, root: 300, owner: 2, epoch: 4, route: 6, split_from: None };

fn asked(fake: &Fake) -> Vec<(u64, u64, String, u64)> {
    let show = |seen: &Seen| {
        let target = first_target(seen);
        let path = String::from_utf8(target.path.to_vec()).unwrap();
        (seen.request.subtree, target.base, path, seen.request.route)
    };
    fake.seen().iter().map(show).collect()
}

#[tokio::test]
async fn r16_a_crossing_costs_one_hop_and_later_none() {
    let forest = forest(&[(1, "a/b", 2, 200, 5), (2, "c", 3, 300, 6)]);
    let (one, two, three) = (walking(0, &forest).await, walking(1, &forest).await, walking(2, &forest).await);
    let (client, _map) = fake::client(fake::map(1, &[&one, &two, &three], &[Owned::root(), OTHER, BELOW]));
    assert_eq!(client.read("/a/b/x").await.unwrap(), "x");
    assert_eq!(asked(&one), [(1, 0, "a/b/x".into(), 0)]);
    assert_eq!(asked(&two), [(2, 200, "x".into(), 5)]);
    let seen = &two.seen()[0];
    assert_eq!((seen.request.subtree_epoch, seen.request.retry), (7, false), "R10: a first send there");
    assert_eq!(seen.request.id, one.seen()[0].request.id, "R9");
    assert_eq!(client.read("/a/b/y").await.unwrap(), "y");
    assert_eq!(client.read("/a/b/c/z").await.unwrap(), "z");
    assert_eq!(client.read("/a/b/c/z2").await.unwrap(), "z2");
    assert_eq!(client.read("/a/b").await.unwrap(), "", "the root itself is the subtree's");
    assert_eq!(one.seen().len(), 1, "none of it needed the root");
    let two: Vec<_> = asked(&two).into_iter().map(|(.., path, _)| path).collect();
    assert_eq!(two, ["x", "y", "c/z", ""]);
    assert_eq!(asked(&three), [(3, 300, "z".into(), 6), (3, 300, "z2".into(), 6)]);
}

#[tokio::test]
async fn r15_the_name_of_a_subtrees_root_belongs_to_the_parent() {
    let forest = forest(&[(1, "a", 2, 200, 5)]);
    let (one, two) = (walking(0, &forest).await, walking(1, &forest).await);
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    client.read("/a/x").await.unwrap();
    client.remove_file("/a").await.unwrap();
    client.rename("/a/x", "/a/y").await.unwrap();
    assert_eq!(asked(&one).last(), Some(&(1, 0, "a".into(), 0)));
    let Op::Rename(rename) = op(&two.seen()[1]).clone() else { panic!() };
    let target = |name: &'static str| Some(Target { base: 200, path: name.into() });
    assert_eq!((rename.from, rename.to), (target("x"), target("y")));
    assert_eq!((two.seen()[1].request.route, two.seen()[1].request.second_route), (5, 5));
}

#[tokio::test]
async fn r16_each_user_finds_his_own_way() {
    let forest = forest(&[(1, "a", 2, 200, 5)]);
    let (one, two) = (walking(0, &forest).await, walking(1, &forest).await);
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    for _ in 0..2 {
        client.read("/a/x").await.unwrap();
        client.as_user(5, 5, [6]).read("/a/x").await.unwrap();
    }
    assert_eq!((one.seen().len(), two.seen().len()), (2, 4));
}

#[tokio::test]
async fn r16_a_way_that_was_changed_is_found_anew_under_the_same_number() {
    let forest = forest(&[(1, "a", 2, 200, 5)]);
    let one = walking(0, &forest).await;
    let present = Arc::clone(&forest);
    let two = Fake::start_rank(1, 64, move |seen| {
        let stale = seen.request.route != present.lock().unwrap()[0].4;
        vec![Act::Answer(if stale { error(Reason::StaleRoute) } else { walk(&present, seen) })]
    })
    .await;
    let (client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    client.read("/a/x").await.unwrap();
    forest.lock().unwrap()[0].4 = 6;
    assert_eq!(client.read("/a/y").await.unwrap(), "y");
    let id = one.seen()[1].request.id;
    assert_eq!(asked(&one)[1], (1, 0, "a/y".into(), 0));
    let two_asked: Vec<_> = two.seen().iter().map(|seen| (seen.request.id, seen.request.route)).collect();
    assert_eq!(two_asked[1..], [(id, 5), (id, 6)], "R9");
    assert!(!two.seen()[2].request.retry, "R10: the first send was refused for good");
    client.read("/a/z").await.unwrap();
    assert_eq!(one.seen().len(), 2);
    // A new map alone is enough.
    forest.lock().unwrap()[0].4 = 7;
    map.send_replace(Arc::new(fake::map(2, &[&one, &two], &[Owned::root(), Owned { route: 7, ..OTHER }])));
    client.read("/a/z").await.unwrap();
    assert_eq!((one.seen().len(), two.seen().len()), (3, 5));
}

#[tokio::test]
async fn r16_what_led_through_a_symlink_is_not_remembered() {
    let one = Fake::start(|_| vec![Act::Answer(redirect(vec![to(2, 250, "x")]))]).await;
    let two = Fake::start_rank(1, 64, |seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), Owned { route: 1, ..OTHER }]));
    for _ in 0..2 {
        assert_eq!(client.read("/link/x").await.unwrap(), "x");
    }
    assert_eq!(asked(&one).len(), 2);
    assert_eq!(asked(&two), [(2, 250, "x".into(), 1), (2, 250, "x".into(), 1)]);
}

#[tokio::test]
async fn crossings_that_never_end_are_eloop() {
    let circle = |to_subtree, base| move |_: &Seen| vec![Act::Answer(redirect(vec![to(to_subtree, base, "x/y")]))];
    let one = Fake::start(circle(2, 200)).await;
    let two = Fake::start_rank(1, 64, circle(1, 150)).await;
    let subtrees = [Owned::root(), Owned { route: 1, epoch: 1, ..OTHER }];
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &subtrees));
    assert_eq!(client.read("/x").await.unwrap_err().errno(), Errno::ELOOP);
    assert_eq!(one.seen().len() + two.seen().len(), 64);
}

#[tokio::test]
async fn crossings_that_make_no_sense_are_errors() {
    let nonsense = [
        to(0, 200, "x"),
        to(2, 0, "x"),
        to(2, u64::MAX, "x"),
        Crossing { target: 1, ..to(2, 200, "x") },
        Crossing { target: u32::MAX, ..to(2, 200, "x") },
        to(2, 200, &"x/".repeat(100_000)),
    ];
    for crossing in nonsense {
        let fake = Fake::start(move |_| vec![Act::Answer(redirect(vec![crossing.clone()]))]).await;
        let (client, _map) = fake.client();
        assert_eq!(client.read("/x").await.unwrap_err().errno(), Errno::EPROTO);
    }
    // Bytes passed that are not there, or do not fit: followed, but not remembered.
    for consumed in [1, 2, u32::MAX] {
        let one =
            Fake::start(move |_| vec![Act::Answer(redirect(vec![Crossing { consumed, ..to(2, 200, "z") }]))]).await;
        let two = Fake::start_rank(1, 64, |seen| vec![Act::Answer(correct(seen))]).await;
        let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), Owned { route: 1, ..OTHER }]));
        for _ in 0..2 {
            assert_eq!(client.read("/abc/z").await.unwrap(), "z");
        }
        assert_eq!(one.seen().len(), 2, "{consumed}");
    }
}

#[tokio::test]
async fn r14_a_client_that_is_behind_gets_the_map_first() {
    let one = Fake::start(|_| {
        let crossing = Crossing { consumed: 1, subtree_epoch: 7, route: 5, ..to(2, 200, "x") };
        vec![Act::Answer(Answer::Redirect(Redirect { map_epoch: 9, crossings: vec![crossing], ..Redirect::default() }))]
    })
    .await;
    let two = Fake::start_rank(1, 64, |seen| vec![Act::Answer(correct(seen))]).await;
    let (client, map) = fake::client(one.map(1));
    let read = tokio::spawn(async move { client.read("/a/x").await });
    one.wait_seen(|seen| !seen.is_empty()).await;
    map.send_replace(Arc::new(fake::map(9, &[&one, &two], &[Owned::root(), OTHER])));
    assert_eq!(read.await.unwrap().unwrap(), "x");
    assert_eq!((one.seen().len(), asked(&two)), (1, vec![(2, 200, "x".into(), 5)]));
}

/// The server knows the path only from where it goes on.
#[tokio::test]
async fn an_error_names_the_path_as_it_was_given() {
    let one = Fake::start(|_| vec![Act::Answer(redirect(vec![to(2, 200, "x")]))]).await;
    for (named, shown) in [("x", "/a/x"), ("elsewhere", "/a/x")] {
        let error = ProtoError::posix(Errno::ENOENT).at(named);
        let two = Fake::start_rank(1, 64, move |_| vec![Act::Answer(Answer::Error(error.to_rpc_status()))]).await;
        let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
        let error = client.read("/a/x").await.unwrap_err();
        assert_eq!((error.errno(), error.path()), (Errno::ENOENT, Some(shown.as_bytes())), "{named}");
    }
}

/// Both end in the same name.
#[tokio::test]
async fn of_two_paths_the_one_that_is_meant_is_named() {
    let one =
        Fake::start(|_| vec![Act::Answer(redirect(vec![to(2, 200, "x"), Crossing { target: 1, ..to(2, 210, "x") }]))])
            .await;
    for (errno, shown) in [(Errno::ENOENT, "/a/x"), (Errno::EEXIST, "/b/x")] {
        let error = ProtoError::posix(errno).at("x");
        let two = Fake::start_rank(1, 64, move |_| vec![Act::Answer(Answer::Error(error.to_rpc_status()))]).await;
        let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
        let error = client.rename("/a/x", "/b/x").await.unwrap_err();
        assert_eq!((error.errno(), error.path()), (errno, Some(shown.as_bytes())));
    }
}

#[tokio::test]
async fn the_second_target_leads_the_request_to_where_the_first_one_shows_to_be_elsewhere() {
    // rename(x, link/y): only `link/y` leaves the root subtree.
    let one = Fake::start(|seen| {
        let answer = match (op(seen), first_target(seen).base) {
            (Op::Rename(rename), 0) if rename.to.as_ref().unwrap().base == 0 => {
                redirect(vec![Crossing { target: 1, route: 5, ..to(2, 200, "y") }])
            }
            _ => Answer::Error(ProtoError::posix(Errno::EXDEV).to_rpc_status()),
        };
        vec![Act::Answer(answer)]
    })
    .await;
    let two = Fake::start_rank(1, 64, |_| {
        let second = Crossing { target: 1, route: 5, ..to(2, 210, "y") };
        vec![Act::Answer(redirect(vec![to(1, 1, "x"), second]))]
    })
    .await;
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    assert_eq!(client.rename("/x", "/link/y").await.unwrap_err().errno(), Errno::EXDEV);
    let at_two = &two.seen()[0].request;
    assert_eq!((at_two.subtree, at_two.route, at_two.second_route, at_two.second_subtree), (2, 0, 5, 2));
    let Op::Rename(last) = op(&one.seen()[1]).clone() else { panic!() };
    assert_eq!(last.from, Some(Target { base: 1, path: "x".into() }));
    assert_eq!(last.to, Some(Target { base: 210, path: "y".into() }));
    assert_eq!((one.seen()[1].request.route, one.seen().len()), (0, 2));
}

#[tokio::test]
async fn a_listing_tells_the_attributes_of_other_subtrees_roots_too() {
    let one = Fake::start(|seen| {
        let entry = |name: &str, kind: FileKind, attr| DirEntry {
            name: name.to_owned().into(),
            ino: 42,
            kind: kind.into(),
            attr,
            ..DirEntry::default()
        };
        let answer = match op(seen) {
            Op::Readdir(_) => Answer::Readdir(ReaddirResponse {
                entries: vec![
                    entry("file", FileKind::File, Some(attr())),
                    entry("gone", FileKind::Directory, None),
                    entry("root", FileKind::Directory, None),
                ],
                end: true,
            }),
            _ if &first_target(seen).path[..] == b"d/root" => {
                redirect(vec![Crossing { consumed: 6, route: 5, ..to(2, 200, "") }])
            }
            _ => Answer::Error(ProtoError::posix(Errno::ENOENT).to_rpc_status()),
        };
        vec![Act::Answer(answer)]
    })
    .await;
    let two = Fake::start_rank(1, 64, |_| {
        let attr = Attr { ino: 200, kind: FileKind::Directory.into(), mode: 0o700, ..Attr::default() };
        vec![Act::Answer(Answer::Stat(StatResponse { attr: Some(attr), placement: None }))]
    })
    .await;
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    let options = ReadDirOptions { metadata: true, ..ReadDirOptions::default() };
    let mut listing = client.read_dir_with("/d", options).await.unwrap();
    let mut found = Vec::new();
    while let Some(entry) = listing.next_entry().await.unwrap() {
        found.push((entry.name().to_vec(), entry.metadata().unwrap().mode()));
    }
    assert_eq!(found, [(b"file".to_vec(), 0o644), (b"root".to_vec(), 0o700)]);
    let mut plain = client.read_dir("/d").await.unwrap();
    let mut count = 0;
    while plain.next_entry().await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!((count, two.seen().len()), (3, 1), "without attributes nobody is asked");
}

#[tokio::test]
async fn a_listing_of_what_may_not_be_searched_has_names_without_attributes() {
    let fake = Fake::start(|seen| {
        let entry = |number| DirEntry {
            name: format!("{number:04}").into(),
            ino: number,
            kind: FileKind::Directory.into(),
            ..DirEntry::default()
        };
        vec![Act::Answer(match op(seen) {
            Op::Readdir(_) => Answer::Readdir(ReaddirResponse { entries: (1..=1000).map(entry).collect(), end: true }),
            _ => Answer::Error(ProtoError::posix(Errno::EACCES).to_rpc_status()),
        })]
    })
    .await;
    let (client, _map) = fake.client();
    let options = ReadDirOptions { metadata: true, ..ReadDirOptions::default() };
    let mut listing = client.read_dir_with("/d", options).await.unwrap();
    let mut count = 1;
    while let Some(entry) = listing.next_entry().await.unwrap() {
        assert_eq!((entry.ino(), entry.metadata()), (count, None));
        count += 1;
    }
    assert_eq!(count, 1001);
    assert!(fake.seen().len() <= 33, "one refusal tells enough: {}", fake.seen().len());
}

#[tokio::test]
async fn a_directory_that_is_known_by_number_is_asked_for_where_it_was_found() {
    let one = Fake::start(|seen| {
        let target = first_target(seen);
        vec![Act::Answer(match target.base {
            0 => redirect(vec![Crossing { route: 5, ..to(2, 200, "x") }]),
            base => redirect(vec![Crossing { route: 5, ..to(2, base, std::str::from_utf8(&target.path).unwrap()) }]),
        })]
    })
    .await;
    let two = Fake::start_rank(1, 64, |seen| {
        let attr = Some(Attr { ino: 220, kind: FileKind::Directory.into(), ..Attr::default() });
        vec![Act::Answer(match op(seen) {
            Op::Stat(_) => Answer::Stat(StatResponse { attr, placement: None }),
            _ => Answer::Error(ProtoError::posix(Errno::ENOENT).at("y").to_rpc_status()),
        })]
    })
    .await;
    let (client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    let dir = client.open_dir("/a/x").await.unwrap();
    let error = dir.remove_file("y").await.unwrap_err();
    assert_eq!((error.errno(), error.path()), (Errno::ENOENT, Some(&b"/a/x/y"[..])));
    assert_eq!((asked(&one).len(), asked(&two).pop()), (1, Some((2, 220, "y".into(), 0))));
    for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
        assert!(dir.remove_file(name).await.is_err(), "{name}");
    }
    assert_eq!(two.seen().len(), 2, "none of these is a name");
    // Its subtree is merged away: the root knows where it is by now.
    let other = Owned { subtree: 3, ..OTHER };
    map.send_replace(Arc::new(fake::map(2, &[&one, &two], &[Owned::root(), other])));
    let asking = tokio::spawn(async move { dir.remove_file("y").await });
    one.wait_seen(|seen| seen.len() > 1).await;
    assert_eq!(asked(&one)[1], (1, 220, "y".into(), 0));
    map.send_replace(Arc::new(fake::map(3, &[&one, &two], &[Owned::root(), OTHER])));
    assert_eq!(asking.await.unwrap().unwrap_err().errno(), Errno::ENOENT);
}

#[tokio::test]
async fn locate_tells_who_answered() {
    let forest = forest(&[(1, "a/b", 2, 200, 5)]);
    let (one, two) = (walking(0, &forest).await, walking(1, &forest).await);
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    for _ in 0..2 {
        let found = client.locate("/a/b/x/y").await.unwrap();
        assert_eq!((found.subtree.0, found.epoch.0, found.rank.0, found.ino.0), (2, 7, 1, 42));
        assert_eq!((found.address, found.path), (two.address.to_string(), "x/y".into()));
    }
    let found = client.locate("/c").await.unwrap();
    assert_eq!((found.subtree.0, found.rank.0, found.path), (1, 0, "c".into()));
}

#[tokio::test]
async fn an_echo_needs_no_root() {
    let one = Fake::start(|_| vec![]).await;
    let two = Fake::start_rank(1, 64, |_| vec![]).await;
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[OTHER]));
    let client = client.with_deadline(Duration::from_secs(5));
    assert_eq!(client.echo("x".into()).await.unwrap(), "x");
}
