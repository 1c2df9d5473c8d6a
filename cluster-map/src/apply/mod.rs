//! What each command does to the map. One file for each thing that commands are about.
//!
//! A command either fails and changes nothing, or it succeeds; the epoch rises by one when anything changed.
//! All commands may be repeated.

mod client;
mod create;
mod inos;
mod osd;
mod pg;
mod rank;
mod setting;
mod subtree;
mod transaction;

use pando_proto::Epoch;

use crate::command::{Command, CommandError, CommandResult, CommandValue};
use crate::map::ClusterMap;

/// Longest address, host name and the like, in bytes.
const MAX_TEXT: usize = 255;
/// Longest boot id or nonce, in bytes.
const MAX_TOKEN: usize = 64;

/// What a verb reports: whether the map changed, and its result.
type Applied = Result<(bool, CommandValue), CommandError>;

const UNCHANGED: (bool, CommandValue) = (false, CommandValue::Done);
const CHANGED: (bool, CommandValue) = (true, CommandValue::Done);

impl ClusterMap {
    /// Applies a command. Deterministic: every mon that applies the same commands has the same map.
    ///
    /// Errors: the command makes no sense, or no sense any more; the map is unchanged then.
    pub fn apply(&mut self, command: &Command) -> Result<CommandResult, CommandError> {
        if !self.exists() && !matches!(command, Command::CreateCluster(_)) {
            return Err(CommandError::NoCluster);
        }
        let (changed, value) = match command {
            Command::CreateCluster(command) => create::create_cluster(self, command),
            Command::RegisterOsd(command) => osd::register(self, command),
            Command::OsdDown(command) => osd::down(self, *command),
            Command::OsdUp(command) => osd::up(self, *command),
            Command::OsdOut(command) => osd::out(self, *command),
            Command::RegisterRank(command) => rank::register(self, command),
            Command::RankDown(command) => rank::down(self, command),
            Command::RankUp(command) => rank::up(self, *command),
            Command::RegisterClient(command) => client::register(self, command),
            Command::EndSession(command) => client::end(self, *command),
            Command::ConfirmMember(command) => pg::confirm_member(self, *command),
            Command::DemoteMember(command) => pg::demote_member(self, *command),
            Command::OverridePg(command) => pg::override_pg(self, *command),
            Command::AllocateInos(command) => inos::allocate(self, command),
            Command::SetSetting(command) => setting::set(self, command),
            Command::ForgetLongerLease(command) => setting::forget_longer_lease(self, *command),
            Command::SetMon(command) => setting::set_mon(self, command),
            Command::RemoveOsd(command) => osd::remove(self, *command),
            Command::RemoveRank(command) => rank::remove(self, *command),
            Command::SplitSubtree(command) => subtree::split(self, command),
            Command::MergeSubtree(command) => subtree::merge(self, *command),
            Command::StartMove(command) => subtree::start_move(self, *command),
            Command::CommitMove(command) => subtree::commit_move(self, *command),
            Command::CancelMove(command) => subtree::cancel_move(self, *command),
            Command::RaiseRoutes(command) => subtree::raise_routes(self, command),
            Command::RenewSubtree(command) => subtree::renew(self, *command),
            Command::PinSubtree(command) => subtree::pin(self, *command),
            Command::SpreadSubtree(command) => subtree::spread(self, *command),
            Command::DrainRank(command) => rank::drain(self, *command),
            Command::DecideTransaction(command) => transaction::decide(self, command),
            Command::FinishTransactions(command) => transaction::finish(self, command),
        }?;
        if changed {
            self.epoch = self.next_epoch();
        }
        Ok(CommandResult { epoch: self.epoch, value })
    }

    /// Of the map with what is being applied.
    fn next_epoch(&self) -> Epoch {
        Epoch(self.epoch.0 + 1)
    }

    /// Whether the cluster was created.
    pub fn exists(&self) -> bool {
        self.cluster_id != [0; 16]
    }
}

fn check_token(what: &str, token: &[u8]) -> Result<(), CommandError> {
    if token.is_empty() || token.len() > MAX_TOKEN {
        let got = token.len();
        return Err(CommandError::Invalid(format!("the {what} has {got} bytes: send 1 to {MAX_TOKEN} random ones")));
    }
    Ok(())
}

fn check_text(what: &str, text: &str, limit: usize) -> Result<(), CommandError> {
    if text.len() > limit || text.chars().any(char::is_control) {
        return Err(CommandError::Invalid(format!("the {what} is longer than {limit} bytes or not plain text")));
    }
    Ok(())
}

/// `host:port` with a port that one can connect to.
fn check_address(address: &str) -> Result<(), CommandError> {
    check_text("address", address, MAX_TEXT)?;
    let parts = address.rsplit_once(':');
    let fine = parts.is_some_and(|(host, port)| {
        let host_fine = !host.is_empty() && !host.contains(['/', ' ', '@']);
        host_fine && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if fine { Ok(()) } else { Err(CommandError::Invalid(format!("`{address}` is no address of the form host:port"))) }
}

#[cfg(test)]
mod tests;
