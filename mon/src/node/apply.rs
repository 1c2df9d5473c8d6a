//! What Raft says is to be done: write, send, apply (in the order that its documentation asks for).

use std::sync::Arc;

use pando_cluster_map::{Command, CommandError, CommandResult, CommandValue, invariants};
use pando_mon_client::Daemon;
use pando_proto::{Error, Rank, Reason, SubtreeId};
use raft::SnapshotStatus;
use raft::eraftpb::{Entry, EntryType, Message};

use super::{Leadership, Node, Pending};
use crate::storage::Position;

impl Node {
    /// Does all that Raft has ready.
    pub(super) fn pump(&mut self) -> Result<(), crate::Error> {
        let epoch = self.map.epoch;
        self.ask_reads();
        while self.raw.has_ready() {
            self.one_ready()?;
            self.notice_leadership();
            // A new leader may have become ready.
            self.ask_reads();
        }
        if self.map.epoch != epoch {
            self.published.send_replace(Arc::clone(&self.map));
            self.learn_cluster()?;
        }
        self.answer_reads();
        if self.raw.store().since_snapshot() >= self.compact_every {
            self.raw.mut_store().compact(self.compact_every / 4)?;
        }
        Ok(())
    }

    fn one_ready(&mut self) -> Result<(), crate::Error> {
        let mut ready = self.raw.ready();
        // The leader replicates while it writes.
        self.send(ready.take_messages());
        for state in ready.take_read_states() {
            self.reads.confirm(&state.request_ctx, state.index);
        }
        let entries = ready.take_entries();
        if ready.must_sync() {
            let installed = self.raw.mut_store().persist(entries, ready.hs(), ready.snapshot())?;
            if let Some(map) = installed {
                self.map = map;
                (self.applied, _) = self.raw.store().applied();
                self.leases.learn(&self.map, self.clock.boottime());
            }
        } else if let Some(hard_state) = ready.hs() {
            // Only a higher commit index, which may be lost.
            self.raw.mut_store().set_commit(hard_state.commit);
        }
        self.apply_all(ready.take_committed_entries());
        self.send(ready.take_persisted_messages());
        let mut light = self.raw.advance(ready);
        if let Some(commit) = light.commit_index() {
            self.raw.mut_store().set_commit(commit);
        }
        self.send(light.take_messages());
        self.apply_all(light.take_committed_entries());
        self.raw.advance_apply();
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            if let Some(peer) = self.peers.send(message) {
                self.raw.report_snapshot(peer, SnapshotStatus::Failure);
            }
        }
    }

    fn apply_all(&mut self, entries: Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            self.applied = Position { index: entry.index, term: entry.term };
            // The first entry of a term is empty; members never change by the log.
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                self.apply(&entry);
            }
        }
        self.raw.mut_store().set_applied(self.applied, Arc::clone(&self.map));
    }

    fn apply(&mut self, entry: &Entry) {
        let command = Command::from_bytes(&entry.data);
        let result = command.as_ref().map_err(Clone::clone).and_then(|command| {
            let map = Arc::make_mut(&mut self.map);
            map.apply(command)
        });
        if cfg!(debug_assertions)
            && result.is_ok()
            && let Err(violation) = invariants::check(&self.map)
        {
            panic!("{violation}, after {command:?}");
        }
        self.leases.learn(&self.map, self.clock.boottime());
        if let (Ok(command), Ok(result)) = (&command, &result) {
            self.after(command, result);
        }
        self.complete(entry, result);
    }

    /// A daemon that has come gets the time of a lease to send its first heartbeat.
    fn after(&mut self, command: &Command, result: &CommandResult) {
        if matches!(command, Command::PinSubtree(_) | Command::SpreadSubtree(_) | Command::DrainRank(_)) {
            self.balancer.hurry();
        }
        if let (Command::StartMove(start), CommandValue::Move(move_id)) = (command, result.value) {
            self.balancer.began(SubtreeId(start.subtree), Rank(start.to), move_id);
        }
        let daemon = match (command, result.value) {
            (_, CommandValue::Osd(osd, _)) => Daemon::Osd(osd),
            (Command::RegisterRank(register), _) => Daemon::Rank(Rank(register.rank)),
            (Command::OsdUp(state), _) => Daemon::Osd(pando_proto::OsdId(state.id)),
            (Command::RankUp(state), _) => Daemon::Rank(Rank(state.id)),
            _ => return,
        };
        let now = self.clock.boottime();
        self.leases.grant(daemon, now, &self.map);
    }

    /// Answers whoever proposed this entry, if it was here.
    fn complete(&mut self, entry: &Entry, result: Result<CommandResult, CommandError>) {
        let context = entry.context.strip_prefix(self.boot.to_be_bytes().as_slice());
        let number = context.and_then(|number| number.try_into().ok()).map(u64::from_be_bytes);
        let Some(Pending { reply, frozen }) = number.and_then(|number| self.pending.remove(&number)) else { return };
        if let Some(daemon) = frozen {
            self.leases.thaw(daemon);
        }
        if let Some(reply) = reply {
            let _ = reply.send(result.map_err(Error::from));
        }
    }

    fn notice_leadership(&mut self) {
        let term = self.raw.raft.term;
        let leading = self.is_leader().then_some(term);
        if leading != self.leading {
            self.leading = leading;
            self.fail_pending();
            if leading.is_some() {
                tracing::info!(term, "this mon leads");
                self.leases.elected(self.clock.boottime());
                self.balancer.elected();
            }
        }
        let now = Leadership { leader: self.raw.raft.leader_id, term };
        self.leadership.send_if_modified(|known| std::mem::replace(known, now) != now);
    }

    /// The leadership is lost: nobody knows here what becomes of what was proposed.
    fn fail_pending(&mut self) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            if let Some(reply) = pending.reply {
                let message = "the mons elect another leader: the change may or may not have happened";
                let _ = reply.send(Err(Error::new(Reason::Unavailable, message).retry_after(self.tick)));
            }
        }
    }

    fn learn_cluster(&mut self) -> Result<(), crate::Error> {
        let id = self.map.cluster_id;
        if !self.map.exists() || self.raw.store().cluster_id() == Some(id) {
            return Ok(());
        }
        self.raw.mut_store().set_cluster_id(id)?;
        self.cluster.send_replace(id);
        Ok(())
    }
}
