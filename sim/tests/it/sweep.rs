//! Whoever takes part in a change of several parties dies, or stands still, at every step of it: before the first message
//! that it sends, before the second one, and so on to the last. There is one outcome, and nothing is lost or done twice
//! (R9, R10, R11, R12, R15, R17, R18).

use std::cell::Cell;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pando_client::{Client, SubtreeId};
use pando_proto::Errno;
use pando_sim::stage::{Harm, Stage, play_within, player};

use crate::plays::{Scene, expect, file, holds, owner, text};
use crate::{number, to_repeat_with};

/// The test below, by the name that a child process is given.
const NAME: &str = "every_step_of_a_change_may_be_the_last_of_who_makes_it";
/// One case, for a child process: its name.
const CASE: &str = "PANDO_SIM_CASE";
/// PANDO_SIM_STRIDE=N looks at one step in N, with N = 1 at all, of all cases. Without it, at a few of some.
const STRIDE: u64 = 24;
const CASES_ONE_IN: usize = 3;
/// What a child says of a case that went well begins with this.
const SAID: &str = "steps:";
/// No change takes more messages.
const MOST_STEPS: u64 = 400;
/// Short, so that a step does not take long.
const LEASE_MILLIS: u64 = 500;
/// Virtual time of a case.
const LIMIT: Duration = Duration::from_secs(900);
/// How long a host is away: it is back before its lease ends, or when others have taken over.
const AWAY: [Duration; 2] = [Duration::from_millis(150), Duration::from_millis(1200)];

/// A change of several parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Move,
    Split,
    Merge,
    Rename,
    RenameDirectory,
    Exchange,
    Link,
    /// Of a name that is not the primary one.
    Unlink,
    /// Of the primary name, whose inode goes to the other one.
    UnlinkPrimary,
}

/// Whom it befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Source,
    Destination,
    /// The mon that leads.
    Leader,
    /// The OSD that orders the writes of the source.
    Primary,
}

type Case = (Change, Who, Harm);

fn cases() -> Vec<Case> {
    let two = [Change::Split, Change::Merge];
    let all = [
        Change::Move,
        Change::Rename,
        Change::RenameDirectory,
        Change::Exchange,
        Change::Link,
        Change::Unlink,
        Change::UnlinkPrimary,
    ];
    let of = |change: Change, who: &'static [Who]| who.iter().map(move |who| (change, *who));
    let of_two = two.into_iter().flat_map(|change| of(change, &[Who::Source, Who::Leader, Who::Primary]));
    let of_all =
        all.into_iter().flat_map(|change| of(change, &[Who::Source, Who::Destination, Who::Leader, Who::Primary]));
    let crashes = of_all.chain(of_two).map(|(change, who)| (change, who, Harm::Crash));
    let frozen = [Change::Move, Change::Rename, Change::Split];
    let freezes = frozen.into_iter().flat_map(|change| of(change, &[Who::Source, Who::Leader]));
    crashes.chain(freezes.map(|(change, who)| (change, who, Harm::Freeze))).collect()
}

fn name_of((change, who, harm): Case) -> String {
    format!("{change:?}/{who:?}/{harm:?}")
}

/// What is the same for all steps of a case.
struct Scenery {
    stage: Stage,
    client: Client,
    /// Knows nothing of what the other one does.
    observer: Client,
    /// At /s, of rank 1, and at /t, of rank 2.
    subtrees: [SubtreeId; 2],
}

async fn set_the_stage(stage: Stage) -> Result<Scenery, String> {
    let (client, observer) = (stage.connect().await?, stage.connect().await?);
    let mon = client.mon().ok_or("no mon")?;
    mon.admin().set_setting("lease_millis", &LEASE_MILLIS.to_string()).await.map_err(text)?;
    for (path, data) in [("/s/x", "0"), ("/s/y", "1"), ("/t/f", "t")] {
        file(&client, path, data).await?;
    }
    let subtrees = [stage.split_to(&client, "/s", 1).await?, stage.split_to(&client, "/t", 2).await?];
    Ok(Scenery { stage, client, observer, subtrees })
}

impl Scenery {
    /// Everybody is up, everything is where it was at first, and nothing is under way.
    async fn settle(&self) -> Scene {
        let calm = || {
            let map = self.client.map();
            let whole = map.pgs.values().all(|pg| pg.members.len() == 3 && pg.joining.is_empty());
            let up = map.ranks.values().all(|rank| rank.up) && map.osds.values().all(|osd| osd.up);
            up && whole && map.transactions.is_empty() && map.subtrees.values().all(|subtree| subtree.move_id == 0)
        };
        self.stage.until("all are up and nothing is under way (R18)", calm).await?;
        for (subtree, rank) in self.subtrees.into_iter().zip([1, 2]) {
            self.stage.move_to(&self.client, subtree, rank).await?;
        }
        self.stage.until("all are up and nothing is under way (R18)", calm).await
    }

    async fn host(&self, who: Who) -> Result<String, String> {
        let map = self.client.map();
        Ok(match who {
            Who::Source => format!("mds-{}", owner(&self.client, self.subtrees[0]).0),
            Who::Destination => format!("mds-{}", owner(&self.client, self.subtrees[1]).0),
            Who::Leader => {
                let status = self.client.mon().ok_or("no mon")?.admin().status().await.map_err(text)?;
                format!("mon-{}", status.leader_id)
            }
            Who::Primary => {
                let root = map.subtrees.get(&self.subtrees[0]).ok_or("no subtree")?.root;
                let (_, address) = map.primary(map.pg_of_shard(root.shard())).ok_or("no primary")?;
                address.split(':').next().unwrap_or_default().to_owned()
            }
        })
    }

    async fn prepare(&self, change: Change, n: u64) -> Scene {
        let client = &self.client;
        let (s, t) = (format!("/s/{n}"), format!("/t/{n}"));
        match change {
            Change::Move => Ok(()),
            Change::Split | Change::RenameDirectory => file(client, &format!("{s}/f"), "f").await,
            Change::Merge => {
                file(client, &format!("{s}/f"), "f").await?;
                self.stage.split(client, &s).await.map(|_| ())
            }
            Change::Rename | Change::Link => file(client, &s, "s").await,
            Change::Exchange => {
                file(client, &s, "s").await?;
                file(client, &t, "t").await
            }
            Change::Unlink | Change::UnlinkPrimary => {
                file(client, &s, "s").await?;
                client.hard_link(&s, &t).await.map_err(text)
            }
        }
    }

    /// Makes the change: it succeeds, whatever happens.
    async fn make(&self, change: Change, n: u64) -> Scene {
        let (stage, client) = (&self.stage, &self.client);
        let (s, t) = (format!("/s/{n}"), format!("/t/{n}"));
        match change {
            Change::Move => stage.move_to(client, self.subtrees[0], 2).await,
            Change::Split => stage.split(client, &s).await.map(|_| ()),
            Change::Merge => {
                let subtree = stage.subtree_of(client, &s).await.ok_or("no subtree to merge")?;
                stage.merge(client, subtree).await
            }
            Change::Rename | Change::RenameDirectory => client.rename(&s, &t).await.map_err(text),
            Change::Exchange => client.exchange(&s, &t).await.map_err(text),
            Change::Link => client.hard_link(&s, &t).await.map_err(text),
            Change::Unlink => client.remove_file(&t).await.map_err(text),
            Change::UnlinkPrimary => client.remove_file(&s).await.map_err(text),
        }
    }

    async fn absent(&self, client: &Client, path: &str) -> Scene {
        match client.metadata(path).await {
            Err(error) if error.errno() == Errno::ENOENT => Ok(()),
            Err(error) => Err(error.to_string()),
            Ok(_) => Err(format!("{path} is there still")),
        }
    }

    async fn has_names(&self, client: &Client, path: &str, count: u32) -> Scene {
        let found = client.metadata(path).await.map_err(text)?.nlink();
        expect(path, found.to_string(), &count.to_string())
    }

    /// What has come of it.
    async fn check(&self, change: Change, n: u64, client: &Client) -> Scene {
        let (s, t) = (format!("/s/{n}"), format!("/t/{n}"));
        let is_root = |path: String| async move { self.stage.subtree_of(client, &path).await.is_some() };
        match change {
            // Who has it by now may have died since; whoever does serves what is looked at in any case.
            Change::Move => Ok(()),
            Change::Split => {
                let roots =
                    client.map().subtrees.values().filter(|found| found.name == n.to_string().as_bytes()).count();
                expect("R11: subtrees", roots.to_string(), "1")?;
                holds("R11", client, &format!("{s}/f"), "f").await
            }
            Change::Merge => {
                expect("R11: a subtree", is_root(s.clone()).await.to_string(), "false")?;
                holds("R11", client, &format!("{s}/f"), "f").await
            }
            Change::Rename => {
                self.absent(client, &s).await?;
                self.has_names(client, &t, 1).await?;
                holds("R18", client, &t, "s").await
            }
            Change::RenameDirectory => {
                self.absent(client, &s).await?;
                holds("R17", client, &format!("{t}/f"), "f").await
            }
            Change::Exchange => {
                holds("R18", client, &s, "t").await?;
                holds("R18", client, &t, "s").await
            }
            Change::Link => {
                self.has_names(client, &s, 2).await?;
                holds("R15", client, &t, "s").await
            }
            Change::Unlink => {
                self.absent(client, &t).await?;
                self.has_names(client, &s, 1).await?;
                holds("R15", client, &s, "s").await
            }
            Change::UnlinkPrimary => {
                self.absent(client, &s).await?;
                self.has_names(client, &t, 1).await?;
                holds("R15", client, &t, "s").await
            }
        }
    }

    /// Subtrees become no more and no more.
    async fn clear(&self, change: Change, n: u64) -> Scene {
        let dir = match change {
            Change::Split => format!("/s/{n}"),
            Change::RenameDirectory => format!("/t/{n}"),
            _ => return Ok(()),
        };
        self.client.remove_file(format!("{dir}/f")).await.map_err(text)?;
        self.client.remove_dir(&dir).await.map_err(text)
    }

    /// Exchanges two files until somebody says that it is over (I4, I5). How often.
    async fn work(&self, over: &Cell<bool>) -> Result<u64, String> {
        let mut count = 0;
        while !over.get() {
            self.observer.exchange("/s/x", "/s/y").await.map_err(text)?;
            count += 1;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        Ok(count)
    }

    /// One step. Whether the change took so many messages at all.
    async fn step(&self, (change, who, harm): Case, n: u64, parity: &mut u64) -> Result<bool, String> {
        self.settle().await?;
        self.prepare(change, n).await?;
        let host = self.host(who).await?;
        self.stage.light_fuse(&host, n, harm, AWAY[(n % 2) as usize]);
        let over = Cell::new(false);
        let making = async {
            let made = self.make(change, n).await;
            over.set(true);
            made
        };
        let (made, worked) = futures_util::future::join(making, self.work(&over)).await;
        made?;
        *parity += worked?;
        // It ends in the background.
        self.stage.until("it is over (R18)", || self.client.map().transactions.is_empty()).await?;
        let came_to_it = self.stage.put_out_fuse();
        for client in [&self.observer, &self.client] {
            self.check(change, n, client).await?;
            holds("I4: exchanged once each", client, "/s/x", &(*parity % 2).to_string()).await?;
            holds("I4: exchanged once each", client, "/s/y", &((*parity + 1) % 2).to_string()).await?;
        }
        self.settle().await?;
        self.clear(change, n).await?;
        Ok(came_to_it)
    }
}

/// Errors: what was wrong, at which step.
fn sweep(case: Case, first: u64, stride: u64) -> Result<u64, String> {
    let (seed, steps) =
        (name_of(case).bytes().fold(7, |hash: u64, byte| hash * 31 % 1_000_003 + u64::from(byte)), AtomicU64::new(0));
    let steps = std::sync::Arc::new(steps);
    let counted = std::sync::Arc::clone(&steps);
    let director = player("director", move |stage| async move {
        let scenery = set_the_stage(stage).await?;
        let (mut n, mut parity) = (first, 0);
        let begun = tokio::time::Instant::now();
        while scenery.step(case, n, &mut parity).await.map_err(|error| format!("at message {n}: {error}"))? {
            counted.fetch_add(1, Ordering::Relaxed);
            n += stride;
            if n > MOST_STEPS {
                return Err(format!("a change takes more than {MOST_STEPS} messages"));
            }
        }
        println!("{} messages in {:?}", n, begun.elapsed());
        scenery.settle().await?;
        scenery.stage.verify(&scenery.client).await
    });
    play_within(LIMIT, seed, vec![director])?;
    Ok(steps.load(Ordering::Relaxed))
}

#[test]
fn every_step_of_a_change_may_be_the_last_of_who_makes_it() {
    let wanted = number("PANDO_SIM_STRIDE");
    let stride = wanted.unwrap_or(STRIDE).max(1);
    let mut all = cases();
    if let Ok(name) = std::env::var(CASE) {
        let (at, case) = all.iter().enumerate().find(|(_, case)| name_of(**case) == name).expect("no such case");
        match sweep(*case, 1 + at as u64 * 5 % stride, stride) {
            Ok(steps) => println!("{SAID} {steps}"),
            Err(error) => panic!(
                "{name}: {error}\nto repeat it: {}",
                to_repeat_with(&format!("{CASE}={name} PANDO_SIM_STRIDE={stride}"), NAME)
            ),
        }
        return;
    }
    if wanted.is_none() {
        all = all.into_iter().step_by(CASES_ONE_IN).collect();
    }
    let (next, steps, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let begun = Instant::now();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match in_a_child(*case, stride) {
                        Ok(some) => drop(steps.fetch_add(some, Ordering::Relaxed)),
                        Err(output) => {
                            println!("{output}");
                            failed.lock().unwrap().push(name_of(*case));
                        }
                    }
                }
            });
        }
    });
    let (steps, failed) = (steps.into_inner(), failed.into_inner().unwrap());
    println!("{} changes of several parties, {steps} steps of them in {:?}", all.len(), begun.elapsed());
    assert!(failed.is_empty(), "failed: {failed:?}");
    assert!(steps >= 60 / stride * all.len() as u64 / 10, "only {steps} steps were looked at");
}

/// Errors: all that the child wrote.
fn in_a_child(case: Case, stride: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program);
    child.args([&format!("sweep::{NAME}"), "--exact", "--nocapture"]);
    child.env(CASE, name_of(case)).env("PANDO_SIM_STRIDE", stride.to_string());
    let output = child.output().map_err(|error| error.to_string())?;
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let steps = out.lines().find_map(|line| line.strip_prefix(SAID)?.trim().parse().ok());
    steps.filter(|_| output.status.success()).ok_or(out + &err)
}
