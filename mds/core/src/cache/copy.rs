//! Taking in what another cache knew (R12).

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::Ino;

use super::names::Names;
use super::{Cache, Slot};
use crate::inode::{Dentry, Inode};

/// What is said of a record: its content, that there is none, or that the source does not know any more.
#[derive(Clone, Debug)]
pub(crate) enum Said<T> {
    Unknown,
    Absent,
    Present(T),
}

impl Cache {
    /// Whether something that is not here yet may be taken in. Once it may not, no directory is complete any more
    /// by what the source says.
    fn has_room(&mut self) -> bool {
        self.partial |= self.is_full();
        !self.partial
    }

    pub fn copy_inode(&mut self, ino: Ino, said: Said<Arc<Inode>>) {
        let known = self.nodes.contains(&ino);
        match said {
            Said::Present(inode) if known || self.has_room() => {
                self.update(ino, |node| node.inode = Slot::Present(inode));
            }
            Said::Present(_) => {}
            Said::Absent => {
                self.remove_node(ino);
            }
            Said::Unknown if known => {
                self.update(ino, |node| node.inode = Slot::Unknown);
                let bare = self.nodes.peek(&ino).is_some_and(|node| node.names.is_none() && node.links.is_none());
                if bare {
                    self.remove_node(ino);
                }
            }
            Said::Unknown => {}
        }
    }

    pub fn copy_body(&mut self, ino: Ino, said: Said<Bytes>) {
        match said {
            Said::Present(data) if self.bodies.contains(&ino) || self.has_room() => {
                self.update_body(ino, |body| body.data = Slot::Present(data));
            }
            // An old one must not stay.
            Said::Present(_) | Said::Absent | Said::Unknown => self.remove_body(ino),
        }
    }

    pub fn copy_names(&mut self, dir: Ino, entries: &[(Bytes, Dentry)], complete: bool) {
        let room = self.has_room();
        if !room {
            return;
        }
        self.update(dir, |node| {
            let names = node.names.get_or_insert_with(|| Box::new(Names::unknown()));
            for (name, dentry) in entries {
                names.install_one(name, Some(*dentry));
            }
            if complete {
                names.set_complete();
            }
        });
    }

    pub fn copy_name(&mut self, dir: Ino, name: &[u8], said: Said<Dentry>) {
        let known = self.nodes.peek(&dir).is_some_and(|node| node.names.is_some());
        let value = match said {
            Said::Unknown => None,
            Said::Absent => Some(None),
            Said::Present(dentry) => Some(Some(dentry)),
        };
        if known || value.is_some() && self.has_room() {
            self.update(dir, |node| {
                node.names.get_or_insert_with(|| Box::new(Names::unknown())).correct(name, value);
            });
        }
    }
}
