//! Subtrees: split and merged (R11), moved (R12), and what people want of them.

use pando_proto::{Epoch, Ino, Rank, SubtreeId, is_file_name};

use super::{Applied, CHANGED, UNCHANGED};
use crate::command::{
    CancelMove, CommandError, CommandValue, CommitMove, MergeSubtree, PinSubtree, RaiseRoutes, RenewSubtree,
    SplitSubtree, SpreadSubtree, StartMove,
};
use crate::map::{ClusterMap, Lineage, Subtree};

/// Merges that sessions are older than. The map travels whole to everyone, so that it has to stay small.
const MAX_MERGES: usize = 4096;
/// Bytes of a path hint that are kept.
const MAX_HINT: usize = 512;

fn find(map: &ClusterMap, id: u64) -> Result<(SubtreeId, &Subtree), CommandError> {
    let id = SubtreeId(id);
    let subtree = map.subtrees.get(&id).ok_or_else(|| CommandError::Unknown(id.to_string()))?;
    Ok((id, subtree))
}

fn find_mut(map: &mut ClusterMap, id: u64) -> Result<&mut Subtree, CommandError> {
    let id = SubtreeId(id);
    map.subtrees.get_mut(&id).ok_or_else(|| CommandError::Unknown(id.to_string()))
}

fn check_epoch(id: SubtreeId, subtree: &Subtree, given: u64) -> Result<(), CommandError> {
    if subtree.epoch.0 == given {
        return Ok(());
    }
    Err(CommandError::Stale { what: format!("the epoch of {id}"), have: subtree.epoch.0, given })
}

fn check_still(id: SubtreeId, subtree: &Subtree) -> Result<(), CommandError> {
    if subtree.move_id == 0 {
        return Ok(());
    }
    let to = subtree.moving_to;
    Err(CommandError::Moving { message: format!("{id} is on its way to {to}"), epoch: subtree.epoch.0 })
}

impl Subtree {
    /// Gives it to a rank, under a new epoch. A move that was under way is void (R12).
    pub(super) fn hand_to(&mut self, rank: Rank, now: Epoch) {
        if self.owner != rank {
            self.taken_from = None;
        }
        self.owner = rank;
        self.raise(now);
        self.stay();
    }

    /// The same because `from`, which had it, is down.
    pub(super) fn take_over(&mut self, rank: Rank, now: Epoch, from: Rank) {
        self.hand_to(rank, now);
        if from != rank {
            self.taken_from = Some(from);
        }
    }

    /// Opened anew, in the map's epoch `now`.
    fn raise(&mut self, now: Epoch) {
        self.epoch = Epoch(self.epoch.0 + 1);
        self.since = now;
    }

    /// Ends a move without a change of owner.
    pub(super) fn stay(&mut self) {
        (self.move_id, self.moving_to) = (0, Rank(0));
    }
}

pub(super) fn split(map: &mut ClusterMap, command: &SplitSubtree) -> Applied {
    let root = check_split(command)?;
    let (parent_id, parent) = find(map, command.parent)?;
    let fenced = Epoch(command.parent_epoch.wrapping_add(1));
    if let Some((id, other)) = map.subtrees.iter().find(|(_, subtree)| subtree.root == root) {
        // Each split raises the parent's epoch: this names one split.
        if other.split_from == Some((parent_id, fenced)) {
            return Ok((false, CommandValue::Subtree(*id)));
        }
        return Err(CommandError::Invalid(format!("the directory is the root of {id} already")));
    }
    check_epoch(parent_id, parent, command.parent_epoch)?;
    check_still(parent_id, parent)?;
    if map.is_full() {
        // Final, unlike `TooMany`: the owner holds the parent frozen meanwhile.
        let count = map.subtrees.len();
        let message = format!("the cluster has {count} subtrees, which is the limit (max_subtrees): merge some first");
        return Err(CommandError::InUse(message));
    }
    for adopted in &command.adopted {
        let (id, subtree) = find(map, *adopted)?;
        if subtree.parent != Some(parent_id) {
            return Err(CommandError::Invalid(format!("{id} is no child of {parent_id}: it cannot be adopted")));
        }
    }
    Ok((true, CommandValue::Subtree(add_child(map, command, parent_id, root))))
}

/// What can be said without the map. Returns the new root.
fn check_split(command: &SplitSubtree) -> Result<Ino, CommandError> {
    let (root, parent_dir) = (Ino(command.root), Ino(command.parent_dir));
    let invalid = |message: &str| Err(CommandError::Invalid(message.to_owned()));
    if !root.is_valid() || !parent_dir.is_valid() || root == parent_dir || root == Ino::ROOT {
        return invalid("a split names a directory below the root and the directory that holds its name");
    }
    if !is_file_name(&command.name) {
        return invalid("the name of the new subtree's root is no file name");
    }
    Ok(root)
}

fn add_child(map: &mut ClusterMap, command: &SplitSubtree, parent_id: SubtreeId, root: Ino) -> SubtreeId {
    let id = SubtreeId(map.next_subtree_id);
    map.next_subtree_id += 1;
    let now = map.next_epoch();
    let mut owner = Rank(0);
    let mut split_from = None;
    if let Some(parent) = map.subtrees.get_mut(&parent_id) {
        parent.raise(now);
        owner = parent.owner;
        split_from = Some((parent_id, parent.epoch));
    }
    for adopted in &command.adopted {
        if let Some(subtree) = map.subtrees.get_mut(&SubtreeId(*adopted)) {
            subtree.parent = Some(id);
        }
    }
    let hint = &command.path_hint;
    let child = Subtree {
        root,
        parent: Some(parent_id),
        owner,
        epoch: Epoch(1),
        path_hint: hint[hint.len().saturating_sub(MAX_HINT)..].to_vec(),
        parent_dir: Some(Ino(command.parent_dir)),
        name: command.name.clone(),
        route: 1,
        split_from,
        automatic: command.automatic,
        since: now,
        ..Subtree::default()
    };
    map.subtrees.insert(id, child);
    trim_lineage(map);
    let split = Lineage {
        child: id,
        parent: parent_id,
        epoch: now,
        merged: false,
        child_fence: Epoch(0),
        child_root: Ino::default(),
    };
    map.lineage.push(split);
    id
}

/// R10: lineage is kept while a session is older than it. Those of ranks, which live long, send no requests.
pub(super) fn trim_lineage(map: &mut ClusterMap) {
    let clients = map.sessions.values().filter(|session| !session.is_of_rank());
    let oldest = clients.map(|session| session.since).min();
    map.lineage.retain(|lineage| oldest.is_some_and(|oldest| oldest < lineage.epoch));
}

pub(super) fn merge(map: &mut ClusterMap, command: MergeSubtree) -> Applied {
    let child_id = SubtreeId(command.child);
    let fence = Epoch(command.child_epoch.wrapping_add(1));
    let repeated = |entry: &Lineage| entry.merged && entry.child == child_id && entry.child_fence == fence;
    if map.lineage.iter().any(repeated) {
        return Ok(UNCHANGED);
    }
    let (_, child) = find(map, command.child)?;
    let Some((parent_id, parent)) = child.parent.and_then(|id| Some((id, map.subtrees.get(&id)?))) else {
        return Err(CommandError::Invalid(format!("{child_id} has no parent to be merged into")));
    };
    check_epoch(child_id, child, command.child_epoch)?;
    check_epoch(parent_id, parent, command.parent_epoch)?;
    check_still(child_id, child)?;
    check_still(parent_id, parent)?;
    if child.owner != parent.owner {
        let message = format!(
            "{child_id} is at {}, its parent {parent_id} at {}: move them to one rank first",
            child.owner, parent.owner
        );
        return Err(CommandError::InUse(message));
    }
    if let Some((below, _)) = map.children(child_id).next() {
        let count = map.children(child_id).count();
        let message = format!("{child_id} has {count} child subtrees ({below} is one): merge those first");
        return Err(CommandError::InUse(message));
    }
    remove_child(map, child_id, parent_id, fence)
}

fn remove_child(map: &mut ClusterMap, child_id: SubtreeId, parent_id: SubtreeId, fence: Epoch) -> Applied {
    let keep_for = map.lineage.iter().filter(|entry| entry.merged).count();
    if keep_for >= MAX_MERGES {
        trim_lineage(map);
        if map.lineage.iter().filter(|entry| entry.merged).count() >= MAX_MERGES {
            let message = format!("a session is older than {MAX_MERGES} merges, which is the limit: end it first");
            return Err(CommandError::InUse(message));
        }
    }
    let Some(child) = map.subtrees.remove(&child_id) else { return Ok(UNCHANGED) };
    super::transaction::sweep(map);
    let epoch = map.next_epoch();
    if let Some(parent) = map.subtrees.get_mut(&parent_id) {
        parent.raise(epoch);
    }
    // Who was first sent to the parent finds it there; who was sent to the child learns of the merge.
    map.lineage.retain(|entry| entry.merged || entry.child != child_id);
    trim_lineage(map);
    let merge =
        Lineage { child: child_id, parent: parent_id, epoch, merged: true, child_fence: fence, child_root: child.root };
    map.lineage.push(merge);
    Ok(CHANGED)
}

pub(super) fn start_move(map: &mut ClusterMap, command: StartMove) -> Applied {
    let (id, subtree) = find(map, command.subtree)?;
    let to = Rank(command.to);
    let rank = map.ranks.get(&to).ok_or_else(|| CommandError::Unknown(to.to_string()))?;
    if subtree.move_id != 0 {
        if subtree.moving_to == to {
            return Ok((false, CommandValue::Move(subtree.move_id)));
        }
        let message = format!("{id} is on its way to {} already: wait for the end of that", subtree.moving_to);
        return Err(CommandError::InUse(message));
    }
    if subtree.owner == to {
        return Ok((false, CommandValue::Move(0)));
    }
    let refused = |message: String| Err(CommandError::Invalid(message));
    if !rank.up {
        return refused(format!("{to} is down: start its pando-mds, or choose another rank"));
    }
    if rank.draining {
        return refused(format!("{to} is being drained: choose another rank, or stop the draining"));
    }
    if !map.ranks.get(&subtree.owner).is_some_and(|owner| owner.up) {
        return refused(format!("{}, which owns {id}, is down: it moves when another rank starts", subtree.owner));
    }
    let move_id = map.epoch.0 + 1;
    let subtree = find_mut(map, command.subtree)?;
    (subtree.move_id, subtree.moving_to) = (move_id, to);
    if command.to_merge {
        subtree.pin = None;
    }
    Ok((true, CommandValue::Move(move_id)))
}

/// R12. Once refused it stays refused: the id of a move that ended never comes back.
pub(super) fn commit_move(map: &mut ClusterMap, command: CommitMove) -> Applied {
    let (id, subtree) = find(map, command.subtree)?;
    if command.move_id != 0 && subtree.last_move == command.move_id {
        return Ok(UNCHANGED);
    }
    check_epoch(id, subtree, command.epoch)?;
    let stale = |what: String, have, given| Err(CommandError::Stale { what, have, given });
    if subtree.move_id == 0 || subtree.move_id != command.move_id {
        return stale(format!("the move of {id}"), subtree.move_id, command.move_id);
    }
    if subtree.owner.0 != command.from {
        return stale(format!("the owner of {id}"), u64::from(subtree.owner.0), u64::from(command.from));
    }
    let now = map.next_epoch();
    let subtree = find_mut(map, command.subtree)?;
    subtree.last_move = command.move_id;
    subtree.hand_to(subtree.moving_to, now);
    Ok(CHANGED)
}

/// R12: after an answer that is no error the move has not happened, and will not.
pub(super) fn cancel_move(map: &mut ClusterMap, command: CancelMove) -> Applied {
    let subtree = find_mut(map, command.subtree)?;
    if command.move_id == 0 {
        return Err(CommandError::Invalid("a move has an id above 0".to_owned()));
    }
    if subtree.last_move == command.move_id {
        let what = format!("the move of {} is done: its epoch", SubtreeId(command.subtree));
        return Err(CommandError::Stale { what, have: subtree.epoch.0, given: 0 });
    }
    if subtree.move_id != command.move_id {
        return Ok(UNCHANGED);
    }
    subtree.stay();
    Ok(CHANGED)
}

/// R11: after an answer nothing that names this epoch of the subtree, or an earlier one, is applied any more. A split
/// or merge that was refused may be so for a while only (the map is full, one of the subtrees moves, a child has to go
/// first), and a copy of it that comes late would be the first one: all that guards it is the epoch that it names.
pub(super) fn renew(map: &mut ClusterMap, command: RenewSubtree) -> Applied {
    let now = map.next_epoch();
    let (id, subtree) = find(map, command.subtree)?;
    if subtree.epoch.0 > command.epoch {
        return Ok(UNCHANGED);
    }
    check_epoch(id, subtree, command.epoch)?;
    let subtree = find_mut(map, command.subtree)?;
    subtree.hand_to(subtree.owner, now);
    Ok(CHANGED)
}

pub(super) fn raise_routes(map: &mut ClusterMap, command: &RaiseRoutes) -> Applied {
    let unknown = |id: &&u64| **id == 0 || **id >= map.next_subtree_id;
    if let Some(id) = command.subtrees.iter().find(unknown) {
        return Err(CommandError::Unknown(SubtreeId(*id).to_string()));
    }
    // There is no way to those that were merged away meanwhile.
    let raised = map.with_descendants(command.subtrees.iter().copied().map(SubtreeId));
    for id in &raised {
        if let Some(subtree) = map.subtrees.get_mut(id) {
            subtree.route += 1;
        }
    }
    Ok((!raised.is_empty(), CommandValue::Done))
}

pub(super) fn pin(map: &mut ClusterMap, command: PinSubtree) -> Applied {
    let pin = command.rank.map(Rank);
    if let Some(rank) = pin.filter(|rank| !map.ranks.contains_key(rank)) {
        return Err(CommandError::Unknown(rank.to_string()));
    }
    let subtree = find_mut(map, command.subtree)?;
    let changed = subtree.pin != pin;
    subtree.pin = pin;
    Ok((changed, CommandValue::Done))
}

pub(super) fn spread(map: &mut ClusterMap, command: SpreadSubtree) -> Applied {
    let subtree = find_mut(map, command.subtree)?;
    let changed = subtree.spread != command.spread;
    subtree.spread = command.spread;
    Ok((changed, CommandValue::Done))
}
