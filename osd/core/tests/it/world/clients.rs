//! What clients ask, and what they are told.

use super::*;

impl World {
    pub(super) fn client(&mut self) {
        let client = self.dice.below(CLIENTS);
        if self.dice.one_in(3) {
            let node = self.dice.below(NODES);
            let primary = self.map.members[0].0 as usize;
            let node = if self.dice.one_in(5) { node } else { primary };
            return self.use_file(node, client);
        }
        let state = &mut self.clients[client];
        if self.ending && !state.waiting_commit && !state.waiting_write {
            return;
        }
        let operation = match self.dice.below(5) {
            0 | 1 => {
                if !state.waiting_commit && self.ending {
                    return;
                }
                if !state.waiting_commit {
                    state.sent += 1;
                    state.waiting_commit = true;
                }
                // Also a copy of an older batch, late.
                let late = if self.dice.one_in(4) { self.dice.below(3) as u64 } else { 0 };
                Operation::Commit(self.clients[client].sent.saturating_sub(late).max(1))
            }
            2 | 3 => {
                if !state.waiting_write && self.ending {
                    return;
                }
                if !state.waiting_write {
                    state.written += 1;
                    state.waiting_write = true;
                }
                let late = if self.dice.one_in(4) { self.dice.below(3) as u64 } else { 0 };
                Operation::Write(self.clients[client].written.saturating_sub(late).max(1))
            }
            _ if self.dice.one_in(2) => Operation::ReadRecord,
            _ => Operation::ReadObject,
        };
        let primary = self.map.members[0].0 as usize;
        let node = if self.dice.one_in(5) { self.dice.below(NODES) } else { primary };
        self.send_request(node, client, operation);
    }

    pub(super) fn send_request(&mut self, at: usize, client: usize, operation: Operation) {
        let node = &mut self.nodes[at];
        if !node.alive || !node.lease {
            return;
        }
        let state = &self.clients[client];
        let floor = match operation {
            Operation::ReadRecord => state.acked,
            Operation::ReadObject => state.write_acked,
            _ => 0,
        };
        node.next_token += 1;
        let token = node.next_token;
        node.open.insert(token, Open { client, operation, floor });
        let write = || MutationKind::Write { offset: 0, data: number(1) };
        let request = match operation {
            Operation::Fill { generation, index } => Request::Mutate(self.mutation(client, generation, index, write())),
            Operation::Purge { generation } => {
                let mutation = self.mutation(client, generation, 0, MutationKind::Delete);
                Request::Purge(Box::new(Purge::new(mutation)))
            }
            Operation::Commit(batch) => Request::Commit(commit(client, batch)),
            Operation::Write(sequence) => Request::Mutate(Mutation {
                session: ClientId(client as u64 + 1),
                sequence,
                low_water: state.write_acked.min(sequence),
                generation: 0,
                object: object(client),
                kind: MutationKind::Write { offset: 0, data: number(sequence) },
            }),
            Operation::ReadRecord => Request::Read(Reads::Keys(vec![keys::record(shard(client), b"k")])),
            Operation::ReadObject => Request::Read(Reads::Object(object(client))),
        };
        self.nodes[at].pg.request(token, request);
        self.act(at);
    }

    pub(super) fn replied(&mut self, at: usize, token: Token, result: Result<Reply, Error>) {
        let Some(open) = self.nodes[at].open.remove(&token) else { return };
        if matches!(open.operation, Operation::Fill { .. } | Operation::Purge { .. }) {
            return self.used_file(open.client, open.operation, result);
        }
        let client = &mut self.clients[open.client];
        match (open.operation, result) {
            (Operation::Commit(batch), Ok(reply)) => {
                assert!(matches!(reply, Reply::Committed { .. }), "{reply:?}");
                client.acked = client.acked.max(batch);
                self.acknowledged += 1;
                if batch == client.sent {
                    client.waiting_commit = false;
                }
            }
            (Operation::Write(sequence), Ok(reply)) => {
                assert!(matches!(reply, Reply::Written { .. }), "{reply:?}");
                client.write_acked = client.write_acked.max(sequence);
                self.acknowledged += 1;
                if sequence == client.written {
                    client.waiting_write = false;
                }
            }
            (_, Ok(reply)) => panic!("{reply:?} to a read"),
            (_, Err(error)) => {
                let disk = matches!(error.reason, Reason::Corrupt | Reason::Storage) && self.faults;
                let passing = matches!(error.reason, Reason::NotOwner | Reason::Unavailable | Reason::NoSpace);
                let expected = disk || passing;
                assert!(expected, "{error:?}: {}", self.describe());
            }
        }
    }
}

/// Batch n sets `k`, makes a record of its own and removes that of batch n - 2.
fn commit(client: usize, batch: u64) -> Batch {
    let shard = shard(client);
    let mut changes = vec![
        Change::Put { key: keys::record(shard, b"k"), value: number(batch) },
        Change::Put { key: keys::record(shard, &batch.to_be_bytes()), value: Bytes::from_static(b"there") },
    ];
    if batch > 2 {
        changes.push(Change::Delete { key: keys::record(shard, &(batch - 2).to_be_bytes()) });
    }
    Batch { shard, subtree: SubtreeId(1), epoch: 1, batch, changes, uses_reserve: batch > 2 }
}
