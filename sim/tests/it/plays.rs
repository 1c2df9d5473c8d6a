//! The holes that the rules close, one play each: who sends what when, and what must come of it.

use std::time::Duration;

use bytes::Bytes;
use pando_client::{Client, Ino, Rank, SubtreeId};
use pando_mds_core::records::Key;
use pando_osd_client::RecordClient;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::osd::{CommitOutcome, CommitRequest};
use pando_proto::{Epoch, Errno};
use pando_sim::faults::Fault;
use pando_sim::stage::{Player, Stage, play, player};

/// Longer than a lease with all that is added to it, and than what is held back takes to arrive.
const LONG: Duration = Duration::from_secs(4);
/// Longer than a message takes, and what it causes at once.
const SHORT: Duration = Duration::from_millis(60);
const MONS: [&str; 3] = ["mon-1", "mon-2", "mon-3"];
const OSDS: [&str; 3] = ["osd-1", "osd-2", "osd-3"];

pub(crate) type Scene = Result<(), String>;

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn expect(what: &str, seen: impl AsRef<[u8]>, want: &str) -> Scene {
    match seen.as_ref() == want.as_bytes() {
        true => Ok(()),
        false => Err(format!("{what}: saw {:?}, expected {want:?}", String::from_utf8_lossy(seen.as_ref()))),
    }
}

pub(crate) async fn file(client: &Client, path: &str, data: &str) -> Scene {
    let (dir, _) = path.rsplit_once('/').unwrap_or_default();
    if !dir.is_empty() {
        client.create_dir_all(dir).await.map_err(text)?;
    }
    client.write(path, data).await.map_err(text)
}

pub(crate) async fn holds(what: &str, client: &Client, path: &str, want: &str) -> Scene {
    expect(what, client.read(path).await.map_err(text)?, want)
}

pub(crate) fn owner(client: &Client, subtree: SubtreeId) -> Rank {
    client.map().subtrees.get(&subtree).map_or(Rank(99), |found| found.owner)
}

/// Waits for what another player or an answer that never came has done.
async fn comes_true(client: &Client, path: &str, want: &str) -> Scene {
    for _ in 0..1000 {
        if client.read(path).await.is_ok_and(|data| data == want) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("{path} never came to hold {want:?}"))
}

/// The owner of a subtree dies, and another one knows only what is in the pool.
async fn with_a_cold_cache(stage: &Stage, client: &Client, subtree: SubtreeId) -> Scene {
    let before = owner(client, subtree);
    stage.order(Fault::Crash(format!("mds-{}", before.0))).await;
    stage.until("somebody else owns it", || owner(client, subtree) != before).await?;
    stage.order(Fault::Start(format!("mds-{}", before.0))).await;
    Ok(())
}

fn run(seed: u64, players: Vec<Player>) {
    if let Err(error) = play(seed, players) {
        panic!("{error}");
    }
}

/// An exchange of which the actor never hears, until `meanwhile` is over.
fn lost_answer<F>(
    dir: &'static str,
    split_to: Option<u32>,
    from: &'static str,
    meanwhile: impl FnOnce(Stage, Client, Option<SubtreeId>) -> F + Send + 'static,
) -> Vec<Player>
where
    F: Future<Output = Scene> + 'static,
{
    let (x, y) = (format!("{dir}/x"), format!("{dir}/y"));
    let (ax, ay) = (x.clone(), y.clone());
    let actor = player("actor", move |stage| async move {
        let client = stage.connect().await?;
        stage.hear("ready").await;
        holds("before", &client, &ax, "x").await?;
        stage.say("knows the way");
        stage.hear("cut").await;
        client.exchange(&ax, &ay).await.map_err(text)?;
        stage.say("answered");
        Ok(())
    });
    let director = player("director", move |stage| async move {
        let client = stage.connect().await?;
        file(&client, &x, "x").await?;
        file(&client, &y, "y").await?;
        let subtree = match split_to {
            Some(rank) => Some(stage.split_to(&client, dir, rank).await?),
            None => None,
        };
        stage.say("ready");
        stage.hear("knows the way").await;
        stage.order(Fault::CutOneWay(from.to_owned(), "actor".to_owned())).await;
        stage.say("cut");
        comes_true(&client, &x, "y").await?;
        meanwhile(stage.clone(), client.clone(), subtree).await?;
        stage.order(Fault::Heal(from.to_owned(), "actor".to_owned())).await;
        stage.hear("answered").await;
        holds("I4: exchanged once", &client, &x, "y").await?;
        holds("I4: exchanged once", &client, &y, "x").await?;
        stage.verify(&client).await
    });
    vec![actor, director]
}

#[test]
fn r9_the_new_owner_knows_what_the_old_one_did() {
    let moved = |stage: Stage, client: Client, subtree: Option<SubtreeId>| async move {
        stage.move_to(&client, subtree.ok_or("no subtree")?, 2).await
    };
    run(1, lost_answer("/a", Some(1), "mds-1", moved));
}

#[test]
fn r9_the_new_owner_knows_what_a_dead_one_did() {
    let died = |stage: Stage, client: Client, subtree: Option<SubtreeId>| async move {
        with_a_cold_cache(&stage, &client, subtree.ok_or("no subtree")?).await
    };
    run(2, lost_answer("/a", Some(1), "mds-1", died));
}

#[test]
fn r10_a_retry_after_a_split_does_not_undo_what_was_done_before() {
    let split = |stage: Stage, client: Client, _| async move { stage.split_to(&client, "/b/d", 1).await.map(|_| ()) };
    run(3, lost_answer("/b/d", None, "mds-0", split));
}

#[test]
fn r10_a_retry_after_a_split_and_a_move_of_the_parent_does_not_undo_it_either() {
    let split = |stage: Stage, client: Client, _| async move {
        stage.split_to(&client, "/b/d", 1).await?;
        stage.move_to(&client, ROOT_SUBTREE, 2).await
    };
    run(4, lost_answer("/b/d", None, "mds-0", split));
}

#[test]
fn r10_a_retry_after_a_merge_is_answered_by_the_parent() {
    let merged = |stage: Stage, client: Client, subtree: Option<SubtreeId>| async move {
        let child = subtree.ok_or("no subtree")?;
        stage.move_to(&client, child, owner(&client, ROOT_SUBTREE).0).await?;
        stage.merge(&client, child).await
    };
    run(5, lost_answer("/c", Some(1), "mds-1", merged));
}

#[test]
fn r2_a_batch_of_a_rank_that_stood_still_for_longer_than_its_lease_comes_too_late() {
    let actor = player("actor", |stage| async move {
        let client = stage.connect().await?;
        stage.hear("held").await;
        // It gives up, and does not send it again.
        match client.with_deadline(Duration::from_secs(1)).write("/z/f", "late").await {
            Err(error) if error.outcome_is_unknown() => {}
            other => return Err(format!("a write that waits for the pool ended: {other:?}")),
        }
        stage.say("gave up");
        Ok(())
    });
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/z/f", "first").await?;
        let before = owner(&client, ROOT_SUBTREE);
        let zombie = format!("mds-{}", before.0);
        for osd in OSDS {
            stage.order(Fault::Hold(zombie.clone(), osd.to_owned())).await;
        }
        stage.say("held");
        // The write comes to the rank, and its batch is under way.
        tokio::time::sleep(SHORT).await;
        stage.order(Fault::Freeze(zombie.clone())).await;
        stage.until("another rank owns the root", || owner(&client, ROOT_SUBTREE) != before).await?;
        stage.hear("gave up").await;
        // Only read, so that no batch of the new owner's stands in the way, but the fence alone.
        holds("by the new owner", &client, "/z/f", "first").await?;
        for osd in OSDS {
            stage.order(Fault::Release(zombie.clone(), osd.to_owned())).await;
        }
        stage.order(Fault::Thaw(zombie)).await;
        tokio::time::sleep(LONG).await;
        with_a_cold_cache(&stage, &client, ROOT_SUBTREE).await?;
        holds("R2: the late batch changed nothing", &client, "/z/f", "first").await?;
        stage.verify(&client).await
    });
    run(6, vec![actor, director]);
}

#[test]
fn r11_late_batches_of_the_parent_change_nothing_after_split_and_move() {
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/p/c/f", "kept").await?;
        let dir = Ino(client.metadata("/p/c").await.map_err(text)?.ino());
        let epoch = client.map().subtrees.get(&ROOT_SUBTREE).map_or(Epoch(0), |root| root.epoch);
        let child = stage.split_to(&client, "/p/c", 1).await?;
        for later in ["/p/c/g", "/p/c/h"] {
            client.write(later, "more").await.map_err(text)?;
        }
        let mon = client.mon().ok_or("no mon")?;
        let env = stage.env();
        let records = RecordClient::new(env.net, mon.watch(client.map(), env.shutdown.clone()), env.shutdown.clone());
        let delete = |subtree: SubtreeId, epoch: Epoch, batch| CommitRequest {
            shard: dir.shard().0.into(),
            subtree: subtree.0,
            epoch: epoch.0,
            batch,
            puts: Vec::new(),
            deletes: vec![Key::Dentry(dir, Bytes::from_static(b"f")).encode()],
            map_epoch: 0,
            uses_reserve: false,
        };
        let late = records.commit(delete(ROOT_SUBTREE, epoch, u64::MAX)).await.map_err(text)?;
        if late.outcome() != CommitOutcome::Fenced {
            return Err(format!("R11: a batch of the parent's former epoch was let in: {late:?}"));
        }
        let now = client.map().subtrees.get(&child).map_or(Epoch(0), |child| child.epoch);
        let copy = records.commit(delete(child, now, 1)).await.map_err(text)?;
        if copy.outcome() != CommitOutcome::Done {
            return Err(format!("R2: a copy of an old batch is answered as done: {copy:?}"));
        }
        with_a_cold_cache(&stage, &client, child).await?;
        env.shutdown.stop();
        holds("R2: and changes nothing", &client, "/p/c/f", "kept").await
    });
    run(7, vec![director]);
}

/// Makes /p a name for something else, at one moment.
async fn point(client: &Client, to: &str) -> Scene {
    client.symlink(to, "/q").await.map_err(text)?;
    client.rename("/q", "/p").await.map_err(text)
}

#[test]
fn r10_what_comes_by_a_stream_that_was_replaced_does_not_begin() {
    let actor = player("actor", |stage| async move {
        let client = stage.connect().await?;
        stage.hear("ready").await;
        holds("before", &client, "/p/x", "d").await?;
        stage.say("knows the way");
        stage.hear("kept").await;
        client.exchange("/p/x", "/p/y").await.map_err(text)?;
        stage.say("answered");
        Ok(())
    });
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        for (path, data) in [("/d/x", "d"), ("/d/y", "D"), ("/t/x", "t"), ("/t/y", "T")] {
            file(&client, path, data).await?;
        }
        stage.split_to(&client, "/t", 1).await?;
        stage.move_to(&client, ROOT_SUBTREE, 0).await?;
        point(&client, "d").await?;
        stage.say("ready");
        stage.hear("knows the way").await;
        stage.order(Fault::KeepFrom("mds-0".to_owned(), "actor".to_owned())).await;
        stage.order(Fault::Cut("actor".to_owned(), "mds-1".to_owned())).await;
        stage.say("kept");
        tokio::time::sleep(SHORT).await;
        // By the next stream it is asked for again, and goes on elsewhere: no epoch and no way has changed.
        point(&client, "t").await?;
        stage.order(Fault::Reset("actor".to_owned())).await;
        tokio::time::sleep(10 * SHORT).await;
        point(&client, "d").await?;
        stage.order(Fault::LetGo("mds-0".to_owned())).await;
        tokio::time::sleep(SHORT).await;
        stage.order(Fault::Heal("actor".to_owned(), "mds-1".to_owned())).await;
        stage.hear("answered").await;
        holds("it was done where it went on", &client, "/t/x", "T").await?;
        holds("I4: and nowhere else", &client, "/d/x", "d").await?;
        stage.verify(&client).await
    });
    run(22, vec![actor, director]);
}

/// Begins a move that cannot be carried out. Its number.
async fn begin_move(stage: &Stage, client: &Client, subtree: SubtreeId, to: u32) -> Result<u64, String> {
    let from = owner(client, subtree);
    stage.order(Fault::Hold(format!("mds-{}", from.0), format!("mds-{to}"))).await;
    let mon = client.mon().ok_or("no mon")?;
    let (_, epoch) = mon.admin().move_subtree(subtree, Rank(to), false).await.map_err(text)?;
    let map = mon.get_map(epoch).await.map_err(text)?;
    let found = map.subtrees.get(&subtree).ok_or("no subtree")?;
    match found.move_id {
        0 => Err(format!("the move has ended already: {found:?}")),
        number => Ok(number),
    }
}

/// Nothing comes of a handover that was asked for long ago.
async fn hands_over_late(client: &Client, subtree: SubtreeId, from: Rank, epoch: Epoch, number: u64) -> Scene {
    let (mon, before) = (client.mon().ok_or("no mon")?, owner(client, subtree));
    let late = mon.commit_move(subtree, from, epoch, number).await;
    let map = mon.get_map(Epoch(0)).await.map_err(text)?;
    match map.subtrees.get(&subtree).map(|found| (found.owner, found.move_id != 0)) {
        Some((owner, true)) if owner == before => Ok(()),
        found => Err(format!("R12: a late handover {late:?} had an effect: {found:?}, and {before} before")),
    }
}

#[test]
fn r12_a_late_copy_of_a_handover_changes_nothing() {
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/e/f", "kept").await?;
        let subtree = stage.split_to(&client, "/e", 1).await?;
        let epoch = client.map().subtrees.get(&subtree).map_or(Epoch(0), |found| found.epoch);
        let mon = client.mon().ok_or("no mon")?;
        // Of a move that was given up: the epoch is the same in the next one.
        let first = begin_move(&stage, &client, subtree, 2).await?;
        mon.cancel_move(subtree, first).await.map_err(text)?;
        let second = begin_move(&stage, &client, subtree, 2).await?;
        hands_over_late(&client, subtree, Rank(1), epoch, first).await?;
        stage.order(Fault::Release("mds-1".to_owned(), "mds-2".to_owned())).await;
        stage.move_to(&client, subtree, 2).await?;
        // And of one that was carried out.
        begin_move(&stage, &client, subtree, 1).await?;
        hands_over_late(&client, subtree, Rank(1), epoch, second).await?;
        stage.order(Fault::Release("mds-1".to_owned(), "mds-2".to_owned())).await;
        stage.move_to(&client, subtree, 1).await?;
        holds("R12", &client, "/e/f", "kept").await?;
        stage.verify(&client).await
    });
    run(23, vec![director]);
}

/// Reads a file through a rank that the map of this client names, whatever the mons say; never what was before, once
/// the director has said `new`.
async fn never_reads_what_was_before(stage: Stage, path: &'static str) -> Scene {
    let client = stage.connect().await?;
    stage.hear("ready").await;
    holds("before", &client, path, "old").await?;
    for mon in MONS {
        stage.order(Fault::Cut("actor".to_owned(), mon.to_owned())).await;
    }
    stage.say("reads");
    let hasty = client.with_deadline(Duration::from_millis(300));
    let mut after = 0;
    while after < 20 {
        let told = stage.was_said("new");
        if let Ok(data) = hasty.read(path).await
            && data == "old"
            && told
        {
            return Err("I5: a former owner still answers".to_owned());
        }
        after += u32::from(told);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stage.say("read");
    Ok(())
}

#[test]
fn r12_who_proposed_a_handover_serves_nothing_though_the_answer_is_lost() {
    let actor = player("actor", |stage| never_reads_what_was_before(stage, "/e/f"));
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/e/f", "old").await?;
        let subtree = stage.split_to(&client, "/e", 1).await?;
        stage.say("ready");
        stage.hear("reads").await;
        let mon = client.mon().ok_or("no mon")?;
        mon.admin().move_subtree(subtree, Rank(2), false).await.map_err(text)?;
        let moving = || client.map().subtrees.get(&subtree).is_some_and(|found| found.move_id != 0);
        stage.until("the move has begun", || moving() || owner(&client, subtree) == Rank(2)).await?;
        // By now the source knows; what it proposes still arrives, and nothing comes back.
        for mon in MONS {
            stage.order(Fault::CutOneWay(mon.to_owned(), "mds-1".to_owned())).await;
        }
        stage.until("the subtree is handed over", || owner(&client, subtree) == Rank(2)).await?;
        client.write("/e/f", "new").await.map_err(text)?;
        stage.say("new");
        stage.hear("read").await;
        Ok(())
    });
    run(8, vec![actor, director]);
}

#[test]
fn r13_a_new_leader_waits_for_the_end_of_leases_that_it_has_not_granted() {
    let actor = player("actor", |stage| never_reads_what_was_before(stage, "/f"));
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/f", "old").await?;
        let before = owner(&client, ROOT_SUBTREE);
        let rank = format!("mds-{}", before.0);
        stage.say("ready");
        stage.hear("reads").await;
        let status = client.mon().ok_or("no mon")?.admin().status().await.map_err(text)?;
        // The rank renews no more, and its lease was granted by one who is gone.
        for mon in MONS {
            stage.order(Fault::Cut(rank.clone(), mon.to_owned())).await;
        }
        stage.order(Fault::Crash(format!("mon-{}", status.leader_id))).await;
        stage.until("another rank owns the root", || owner(&client, ROOT_SUBTREE) != before).await?;
        client.write("/f", "new").await.map_err(text)?;
        stage.say("new");
        stage.hear("read").await;
        Ok(())
    });
    run(9, vec![actor, director]);
}

/// What would have changed if somebody had been taken for dead.
fn lives(client: &Client) -> Vec<(Rank, bool, u64, Vec<Epoch>)> {
    let map = client.map();
    let epochs =
        |rank: Rank| map.subtrees.values().filter(|found| found.owner == rank).map(|found| found.epoch).collect();
    map.ranks.iter().map(|(rank, info)| (*rank, info.up, info.incarnation, epochs(*rank))).collect()
}

#[test]
fn r13_mons_that_stood_still_take_nobody_for_dead() {
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/u/f", "before").await?;
        stage.split_to(&client, "/u", 2).await?;
        let before = lives(&client);
        for mon in MONS {
            stage.order(Fault::Freeze(mon.to_owned())).await;
        }
        // All leases end meanwhile.
        tokio::time::sleep(LONG).await;
        // Heartbeats are on their way still when the mons look at their clocks again.
        let daemons = OSDS.iter().chain(&["mds-0", "mds-1", "mds-2"]);
        let links: Vec<_> = daemons.flat_map(|daemon| MONS.map(|mon| (daemon.to_string(), mon.to_owned()))).collect();
        for (daemon, mon) in links.clone() {
            stage.order(Fault::Hold(daemon, mon)).await;
        }
        for mon in MONS {
            stage.order(Fault::Thaw(mon.to_owned())).await;
        }
        tokio::time::sleep(5 * SHORT).await;
        for (daemon, mon) in links {
            stage.order(Fault::Release(daemon, mon)).await;
        }
        client.write("/u/f", "after").await.map_err(text)?;
        tokio::time::sleep(LONG).await;
        match lives(&client) {
            after if after == before => Ok(()),
            after => Err(format!("R13: {after:?}, and {before:?} before")),
        }
    });
    run(20, vec![director]);
}

#[test]
fn r16_nobody_follows_an_old_way_after_a_rename_above() {
    let actor = player("actor", |stage| async move {
        let client = stage.connect().await?;
        stage.hear("ready").await;
        holds("by the first way", &client, "/g/h/s/f", "moved").await?;
        for mon in MONS {
            stage.order(Fault::Cut("actor".to_owned(), mon.to_owned())).await;
        }
        stage.say("knows the way");
        stage.hear("renamed").await;
        holds("R16: by the new one", &client, "/g/h/s/f", "fresh").await?;
        holds("R16: and by the other", &client, "/g/k/s/f", "moved").await?;
        stage.say("read");
        Ok(())
    });
    let director = player("director", |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/g/h/s/f", "moved").await?;
        stage.split_to(&client, "/g/h/s", 1).await?;
        stage.say("ready");
        stage.hear("knows the way").await;
        client.rename("/g/h", "/g/k").await.map_err(text)?;
        file(&client, "/g/h/s/f", "fresh").await?;
        stage.say("renamed");
        stage.hear("read").await;
        Ok(())
    });
    run(10, vec![actor, director]);
}

#[test]
fn r18_a_name_that_is_locked_where_the_second_one_is_is_waited_for() {
    let director = player("director", |stage| async move {
        let (client, other) = (stage.connect().await?, stage.connect().await?);
        for (path, data) in [("/h/a", "a"), ("/s/b", "b"), ("/t/c", "c")] {
            file(&client, path, data).await?;
        }
        stage.split_to(&client, "/s", 1).await?;
        stage.split_to(&client, "/t", 2).await?;
        stage.move_to(&client, ROOT_SUBTREE, 0).await?;
        holds("the way", &other, "/t/c", "c").await?;
        // The root locks /h/a, and waits for the one who has /s.
        stage.order(Fault::Freeze("mds-1".to_owned())).await;
        let first = client.exchange("/h/a", "/s/b");
        let second = async {
            tokio::time::sleep(SHORT).await;
            other.exchange("/t/c", "/h/a").await
        };
        let thaw = async {
            tokio::time::sleep(25 * SHORT).await;
            stage.order(Fault::Thaw("mds-1".to_owned())).await;
        };
        let (first, second, ()) = futures_util::future::join3(first, second, thaw).await;
        first.map_err(text)?;
        second.map_err(text)?;
        let mut found = Vec::new();
        for path in ["/h/a", "/s/b", "/t/c"] {
            found.extend(client.read(path).await.map_err(text)?);
        }
        found.sort_unstable();
        expect("R18: exchanged", found, "abc")?;
        stage.verify(&client).await
    });
    run(21, vec![director]);
}

/// One of two that cross: one is done, and the other is told that its directory is elsewhere by now, or would be below
/// itself.
fn mover(host: &'static str, from: &'static str, to: &'static str) -> Player {
    player(host, move |stage| async move {
        let client = stage.connect().await?;
        stage.hear("ready").await;
        let refused = client.rename(from, to).await.err().map(|error| error.errno());
        let said = match refused {
            None => "done",
            Some(Errno::EINVAL | Errno::ENOENT) => "refused",
            Some(_) => return Err(format!("rename {from} to {to}: {refused:?}")),
        };
        stage.say(&format!("{host} {said}"));
        stage.say(host);
        Ok(())
    })
}

/// `are_roots`: what is renamed are roots of subtrees already.
fn crossing(are_roots: bool) -> Vec<Player> {
    let director = player("director", move |stage| async move {
        let client = stage.connect().await?;
        file(&client, "/x/a/f", "a").await?;
        file(&client, "/y/b/f", "b").await?;
        let roots = [("/x", 1), ("/y", 2), ("/x/a", 1), ("/y/b", 2)];
        for (path, rank) in roots.into_iter().take(if are_roots { 4 } else { 2 }) {
            stage.split_to(&client, path, rank).await?;
        }
        stage.say("ready");
        stage.hear("one").await;
        stage.hear("other").await;
        let done = ["one", "other"].map(|mover| stage.was_said(&format!("{mover} done")));
        let want = match done {
            [true, false] => ["/y/b/a/f", "/y/b/f"],
            [false, true] => ["/x/a/f", "/x/a/b/f"],
            _ => return Err(format!("R17: of two that cross one is done, not {done:?}")),
        };
        holds("R17", &client, want[0], "a").await?;
        holds("R17", &client, want[1], "b").await?;
        stage.verify(&client).await
    });
    vec![mover("one", "/x/a", "/y/b/a"), mover("other", "/y/b", "/x/a/b"), director]
}

#[test]
fn r17_two_directories_are_not_moved_into_each_other() {
    for seed in 11..15 {
        run(seed, crossing(false));
    }
}

#[test]
fn r17_two_roots_are_not_moved_into_each_other() {
    for seed in 15..19 {
        run(seed, crossing(true));
    }
}
