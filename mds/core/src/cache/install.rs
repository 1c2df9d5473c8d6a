//! Bringing fetched records in (R8).

use bytes::Bytes;
use pando_proto::mds::FileKind;
use pando_proto::{Error, Ino, is_file_name};

use super::names::Names;
use super::{Cache, Slot, names_of};
use crate::api::{Fetch, FetchToken, Fetched};
use crate::inode::{self, Dentry};
use crate::records::Key;
use crate::stop::corrupt;
use std::sync::Arc;

impl Cache {
    pub fn begin_fetch(&mut self) -> FetchToken {
        let token = self.next_sequence();
        self.fetches.insert(token);
        FetchToken(token)
    }

    pub fn abandon_fetch(&mut self, token: FetchToken) {
        self.fetches.remove(&token.0);
        self.futile = 0;
    }

    pub fn pin(&mut self, waiter: u64, fetch: &Fetch) {
        self.pins.pin(waiter, fetch);
    }

    pub fn unpin(&mut self, waiter: u64) {
        self.pins.unpin(waiter);
        self.futile = 0;
    }

    /// Whether something that changed then may be forgotten: no fetch in flight can have read what was before.
    pub(super) fn settled(&self, changed: u64) -> bool {
        self.fetches.first().is_none_or(|oldest| changed < *oldest)
    }

    pub fn install(&mut self, token: FetchToken, fetched: Fetched) -> Result<(), Error> {
        // A token that is not in flight protects nothing: what changed meanwhile may be forgotten by now.
        if !self.fetches.remove(&token.0) {
            return Ok(());
        }
        self.futile = 0;
        if self.was_given_since(token, &fetched) {
            return Ok(());
        }
        match fetched {
            Fetched::Record(Key::Inode(ino), value) => self.install_inode(ino, value),
            Fetched::Record(Key::Body(ino), value) => self.install_body(ino, value),
            Fetched::Record(Key::Dentry(dir, name), value) => {
                let value = value.map(|value| inode::decode_dentry(dir, &value)).transpose()?;
                self.update(dir, |node| names_of(node).install_one(&name, value));
                Ok(())
            }
            Fetched::Dentries { dir, after, entries, end } => {
                let entries = entries
                    .into_iter()
                    .map(|(name, value)| Ok((checked(dir, name)?, inode::decode_dentry(dir, &value)?)))
                    .collect::<Result<Vec<_>, Error>>()?;
                self.update(dir, |node| names_of(node).install_page(&after, &entries, end));
                Ok(())
            }
            Fetched::BackLinks { ino, after, links, end } => {
                let mark = |link: Bytes| (link, Dentry { ino, kind: FileKind::File, remote: false });
                let links: Vec<_> = links.into_iter().map(mark).collect();
                if links.iter().any(|(link, _)| link.len() <= 8) {
                    return Err(corrupt("back link", ino));
                }
                self.update(ino, |node| {
                    let known = node.links.get_or_insert_with(|| Box::new(Names::unknown()));
                    known.install_page(&after, &links, end);
                });
                Ok(())
            }
            // Other records are none of the cache's.
            Fetched::Record(..) => Ok(()),
        }
    }

    /// R15: what began before the inode was given away read what was ours of it.
    fn was_given_since(&mut self, token: FetchToken, fetched: &Fetched) -> bool {
        if self.given.is_empty() {
            return false;
        }
        let ino = match fetched {
            Fetched::Record(Key::Inode(ino) | Key::Body(ino), _) | Fetched::BackLinks { ino, .. } => *ino,
            _ => Ino(0),
        };
        let stale = self.given.get(&ino).is_some_and(|given| token.0 < *given);
        let oldest = self.fetches.first().copied();
        self.given.retain(|_, given| oldest.is_some_and(|oldest| oldest < *given));
        stale
    }

    fn install_inode(&mut self, ino: Ino, value: Option<Bytes>) -> Result<(), Error> {
        if self.nodes.peek(&ino).is_some_and(|node| !matches!(node.inode, Slot::Unknown)) {
            return Ok(());
        }
        let inode = match value {
            Some(value) => Slot::Present(Arc::new(inode::decode_inode(ino, &value)?)),
            None => Slot::Absent,
        };
        self.update(ino, |node| node.inode = inode);
        Ok(())
    }

    fn install_body(&mut self, ino: Ino, value: Option<Bytes>) -> Result<(), Error> {
        if self.bodies.peek(&ino).is_some_and(|body| !matches!(body.data, Slot::Unknown)) {
            return Ok(());
        }
        let data = match value {
            Some(value) => Slot::Present(inode::decode_body(ino, &value)?.data),
            None => Slot::Absent,
        };
        self.update_body(ino, |body| body.data = data);
        Ok(())
    }
}

fn checked(dir: Ino, name: Bytes) -> Result<Bytes, Error> {
    if is_file_name(&name) { Ok(name) } else { Err(corrupt("dentry key", dir)) }
}
