//! A file of each client that is filled, purged, and filled again, with late copies of all that (R22, I7).

use std::collections::BTreeSet;

use super::*;

/// Objects that a file may have.
const OBJECTS: usize = 5;

/// Errors that say nothing of generations.
const PASSING: [Reason; 5] = [Reason::NotOwner, Reason::Unavailable, Reason::Storage, Reason::Corrupt, Reason::NoSpace];

/// Writers have even generations, purges odd ones.
#[derive(Default, Clone)]
pub(super) struct File {
    sequence: u64,
    /// Of those who may write now.
    generation: u64,
    pub purging: bool,
    /// Objects whose writes were acknowledged since the last purge.
    filled: BTreeSet<u64>,
}

fn key(client: usize, index: u64) -> ObjectKey {
    ObjectKey { ino: Ino(200 + client as u64), index }
}

/// The same client has another session for its file: numbers are of one kind each.
fn session(client: usize) -> ClientId {
    ClientId((1 + CLIENTS + client) as u64)
}

impl World {
    /// The next thing that a client does to its file, or one of earlier, late.
    pub(super) fn use_file(&mut self, at: usize, client: usize) {
        let (late, index) = (self.dice.below(3) as u64 * 2, self.dice.below(OBJECTS) as u64);
        let (start, fill) = (self.dice.one_in(6), self.dice.one_in(2));
        let file = &mut self.clients[client].file;
        let generation = file.generation;
        let operation = if self.ending && !file.purging {
            return;
        } else if file.purging || start {
            if !std::mem::replace(&mut file.purging, true) {
                file.filled.clear();
            }
            match fill {
                // Of somebody who does not know.
                true => Operation::Fill { generation: generation.saturating_sub(late), index },
                false => Operation::Purge { generation: generation + 1 },
            }
        } else if fill {
            Operation::Fill { generation: generation.saturating_sub(late), index }
        } else {
            // Of an owner that is no more.
            Operation::Purge { generation: (generation + 1).saturating_sub(late + 2) }
        };
        self.send_request(at, client, operation);
    }

    pub(super) fn mutation(&mut self, client: usize, generation: u64, index: u64, kind: MutationKind) -> Mutation {
        let file = &mut self.clients[client].file;
        file.sequence += 1;
        let (session, sequence) = (session(client), file.sequence);
        Mutation { session, sequence, low_water: 0, generation, object: key(client, index), kind }
    }

    pub(super) fn used_file(&mut self, client: usize, operation: Operation, result: Result<Reply, pando_proto::Error>) {
        let file = &mut self.clients[client].file;
        let refused = match &result {
            Ok(_) => None,
            Err(error) => Some(error.reason),
        };
        match (operation, refused) {
            (_, Some(reason)) if PASSING.contains(&reason) => {}
            (Operation::Fill { generation, index }, None) => {
                if generation == file.generation && !file.purging {
                    file.filled.insert(index);
                }
            }
            (Operation::Purge { generation }, None) => {
                if generation > file.generation {
                    file.generation = generation + 1;
                    file.purging = false;
                    self.purged += 1;
                }
            }
            (Operation::Fill { generation, .. } | Operation::Purge { generation }, Some(Reason::StaleGeneration)) => {
                let now = file.generation + 1;
                assert!(generation < now, "R22: generation {generation} of {now} is refused");
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn check_files(&self, disk: &Disk) {
        for (client, state) in self.clients.iter().enumerate() {
            let file = &state.file;
            for index in 0..OBJECTS as u64 {
                let alive = disk.objects.get(&key(client, index)).filter(|(header, _)| !header.deleted);
                let generation = alive.map(|(header, _)| header.generation);
                let late = generation.is_some_and(|generation| generation < file.generation);
                assert!(!late, "R22: object {index} of {generation:?} is back, {} writes", file.generation);
                let kept = alive.is_some() || !file.filled.contains(&index);
                assert!(kept, "R22: object {index} of generation {} went with an earlier purge", file.generation);
            }
        }
    }
}
