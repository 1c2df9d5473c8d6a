//! `pando balancer log`. JSON: `at_ns`, `map_epoch`, `reason`, `times` (how often in a row), `last_at_ns` (of the last
//! time; `ranks` are the figures of then), `moves` (of `subtree`,
//! `from`, `to`, `reason`, `move_id`: 0 if none has begun), `splits` (of `subtree`, `dir`: an ino), `merges` (subtrees), `ranks` (of `rank`,
//! `busy_permille`, `ops_per_s`, `subtrees`).
//! `pando balancer off|manual|auto`. JSON: `mode`, `map_epoch`.

use pando_cluster_map::settings;
use pando_proto::{Ino, Rank, SubtreeId, mon};
use serde_json::{Value, json};

use crate::args::BalancerCommand;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn run(session: &Session, command: BalancerCommand) -> Result<(), Failure> {
    match command {
        BalancerCommand::Log { limit } => log(session, limit).await,
        BalancerCommand::Off => set(session, settings::BALANCER_OFF).await,
        BalancerCommand::Manual => set(session, settings::BALANCER_MANUAL).await,
        BalancerCommand::Auto => set(session, settings::BALANCER_AUTO).await,
    }
}

async fn set(session: &Session, mode: u64) -> Result<(), Failure> {
    let epoch = session.admin()?.set_setting(settings::BALANCER_MODE, &mode.to_string()).await?;
    if session.json { output::line(json!({"mode": mode, "map_epoch": epoch.0}).to_string()) } else { Ok(()) }
}

async fn log(session: &Session, limit: u32) -> Result<(), Failure> {
    let decisions = session.admin()?.list_decisions(limit).await?;
    for decision in decisions {
        if session.json {
            output::line(fields(&decision).to_string())?;
        } else {
            lines(&decision).into_iter().try_for_each(output::line)?;
        }
    }
    Ok(())
}

fn fields(decision: &mon::Decision) -> Value {
    let moves: Vec<_> = decision
        .moves
        .iter()
        .map(|planned| {
            let (subtree, from, to) = (planned.subtree, planned.from, planned.to);
            json!({"subtree": subtree, "from": from, "to": to, "reason": planned.reason, "move_id": planned.move_id})
        })
        .collect();
    let splits: Vec<_> =
        decision.splits.iter().map(|split| json!({"subtree": split.subtree, "dir": split.dir})).collect();
    let ranks: Vec<_> = decision
        .ranks
        .iter()
        .map(|figure| {
            json!({
                "rank": figure.rank,
                "busy_permille": figure.busy_permille,
                "ops_per_s": figure.ops_per_s,
                "subtrees": figure.subtrees,
            })
        })
        .collect();
    json!({
        "at_ns": decision.at,
        "map_epoch": decision.map_epoch,
        "reason": decision.reason,
        "times": decision.times,
        "last_at_ns": decision.last_at,
        "moves": moves,
        "splits": splits,
        "merges": decision.merges,
        "ranks": ranks,
    })
}

fn lines(decision: &mon::Decision) -> Vec<String> {
    let times = match decision.times {
        0 | 1 => String::new(),
        times => format!(" ({times} times in a row, until {})", output::time_text(decision.last_at)),
    };
    let (at, epoch) = (output::time_text(decision.at), decision.map_epoch);
    let mut lines = vec![format!("{at}  map {epoch}  {}{times}", decision.reason)];
    for figure in &decision.ranks {
        let busy = output::share_text(figure.busy_permille);
        let (rank, ops, subtrees) = (Rank(figure.rank), figure.ops_per_s, figure.subtrees);
        lines.push(format!("    {rank}: {busy} busy, {ops:.0} operations/s, {subtrees} subtrees"));
    }
    for planned in &decision.moves {
        let (subtree, from, to) = (SubtreeId(planned.subtree), Rank(planned.from), Rank(planned.to));
        lines.push(format!("    move {subtree} from {from} to {to}: {}", planned.reason));
    }
    for split in &decision.splits {
        lines.push(format!("    split directory {} off {}", Ino(split.dir), SubtreeId(split.subtree)));
    }
    lines.extend(decision.merges.iter().map(|merged| format!("    merge {} into its parent", SubtreeId(*merged))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_shown_with_its_figures() {
        let decision = mon::Decision {
            map_epoch: 12,
            reason: "mds.0 is saturated".into(),
            moves: vec![mon::PlannedMove { subtree: 7, from: 0, to: 1, reason: "halves it".into(), move_id: 0 }],
            splits: vec![mon::SplitRequest { subtree: 1, dir: 99 }],
            merges: vec![4],
            ranks: vec![mon::RankFigure { rank: 0, busy_permille: 955, ops_per_s: 1234.4, subtrees: 2 }],
            times: 3,
            last_at: 60_000_000_000,
            ..mon::Decision::default()
        };
        let lines = lines(&decision);
        assert_eq!(
            lines[0],
            "1970-01-01 00:00:00  map 12  mds.0 is saturated (3 times in a row, until 1970-01-01 00:01:00)"
        );
        assert_eq!(lines[1], "    mds.0: 96 % busy, 1234 operations/s, 2 subtrees");
        assert_eq!(lines[2], "    move subtree.7 from mds.0 to mds.1: halves it");
        assert_eq!(lines[3..], ["    split directory 99 off subtree.1", "    merge subtree.4 into its parent"]);
        assert_eq!(fields(&decision)["splits"][0]["dir"], 99);
    }
}
