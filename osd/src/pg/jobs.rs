//! What a placement group's task waits for beside its inputs: reads of the engine, and the mon.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_osd_core::{Load, Loaded, ObjectHeader, ObjectKey, Page, PageQuery, Token, keys};
use pando_proto::{Error, OsdId, Reason};

use super::fetch::{Fetch, engine_error};
use super::task::Task;
use super::{Answer, content};
use crate::engine::Engine;

/// Objects listed at once.
const LIST: usize = 1000;
/// The same for those that are then deleted in one transaction, with all their blocks.
const PURGE: usize = 64;
const MON_PAUSE: Duration = Duration::from_millis(200);

/// Tombstones with the client id below which all sessions must have ended, and where to go on.
pub(super) type Tombstones = (Vec<(ObjectKey, u64)>, Option<ObjectKey>);

/// Objects with their headers, and whether there are more.
pub(super) type Objects = (Vec<(ObjectKey, ObjectHeader)>, bool);

/// What a job brought.
pub(super) enum Done {
    Fetched(Vec<(Token, Result<Answer, Error>)>),
    Loaded(u64, Load, Result<Loaded, Error>),
    Sessions(u64, Result<Vec<(Bytes, Bytes)>, Error>),
    Tombstones(u64, Result<Tombstones, Error>),
    Objects(u64, Result<Objects, Error>),
    Leftover(Result<Vec<ObjectKey>, Error>),
    Page(u64, Option<Page>),
    Told,
}

impl Task {
    pub(super) fn fetch(&mut self, reads: Vec<(Token, Arc<Fetch>)>) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        let tokens: Vec<_> = reads.iter().map(|(token, _)| *token).collect();
        self.jobs.push(Box::pin(async move {
            let evaluate = move |engine: &dyn Engine| {
                Ok(reads.into_iter().map(|(token, fetch)| (token, fetch.evaluate(engine, pg))).collect())
            };
            match osd.reads.run(evaluate).await {
                Ok(results) => Done::Fetched(results),
                Err(error) => {
                    let error = engine_error(error);
                    Done::Fetched(tokens.into_iter().map(|token| (token, Err(error.clone()))).collect())
                }
            }
        }));
    }

    pub(super) fn load(&mut self, ticket: u64, load: Load) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        self.jobs.push(Box::pin(async move {
            let read = move |engine: &dyn Engine| match load {
                Load::Fence(shard, subtree) => engine.get(pg, &keys::fence(shard, subtree)).map(Loaded::Fence),
                Load::Header(object) => engine.header(pg, object).map(Loaded::Header),
            };
            Done::Loaded(ticket, load, osd.reads.run(read).await.map_err(engine_error))
        }));
    }

    pub(super) fn load_sessions(&mut self, ticket: u64) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        self.jobs.push(Box::pin(async move {
            let read = move |engine: &dyn Engine| {
                let (mut records, mut start) = (Vec::new(), keys::REPLICATED);
                loop {
                    let page = engine.scan(pg, &start, &keys::SESSIONS_END, 1024, 4 << 20)?;
                    records.extend(page.records);
                    match page.next {
                        Some(next) => start = next,
                        None => return Ok(records),
                    }
                }
            };
            Done::Sessions(ticket, osd.reads.run(read).await.map_err(engine_error))
        }));
    }

    pub(super) fn list_tombstones(&mut self, ticket: u64, after: Option<ObjectKey>) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        self.jobs.push(Box::pin(async move {
            let list = move |engine: &dyn Engine| engine.list_objects(pg, after, LIST);
            let listed = osd.reads.run(list).await.map_err(engine_error).map(|objects| {
                let next = (objects.len() == LIST).then(|| objects.last().map(|(object, _)| *object)).flatten();
                let dead = objects.into_iter().filter(|(_, header)| header.deleted);
                (dead.map(|(object, header)| (object, header.sessions_before)).collect(), next)
            });
            Done::Tombstones(ticket, listed)
        }));
    }

    pub(super) fn list_objects(&mut self, ticket: u64, after: Option<ObjectKey>) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        self.jobs.push(Box::pin(async move {
            let list = move |engine: &dyn Engine| engine.list_objects(pg, after, PURGE);
            let listed = osd.reads.run(list).await.map_err(engine_error).map(|objects| {
                let more = objects.len() == PURGE;
                (objects, more)
            });
            Done::Objects(ticket, listed)
        }));
    }

    pub(super) fn page(&mut self, ticket: u64, query: PageQuery) {
        let (osd, pg, me) = (Arc::clone(&self.osd), self.id, self.osd.me);
        self.jobs.push(Box::pin(async move {
            let page = osd.reads.run(move |engine| content::page(engine, pg, me, &query)).await;
            if let Err(error) = &page {
                tracing::error!(%pg, %error, "cannot read own content to compare it with another copy");
            }
            Done::Page(ticket, page.ok())
        }));
    }

    /// Tells the mon that a joiner caught up, until it knows or the configuration is another.
    pub(super) fn confirm(&mut self, joiner: OsdId) {
        self.tell_mon(joiner, true);
    }

    /// Has the mon take a member out of the configuration, until it did or the configuration is another.
    pub(super) fn demote(&mut self, member: OsdId) {
        let pg = self.id;
        if member == self.osd.me {
            tracing::warn!(
                %pg, osd = %member,
                "this copy lacks, or cannot read, what another member holds: that one becomes primary and repairs this one. \
                 If this OSD did not just crash, its disk lost data: check the disk, or remove its data directory"
            );
        } else {
            tracing::warn!(%pg, osd = %member, "this member lacks too much: it joins anew and is brought all content");
        }
        self.tell_mon(member, false);
    }

    /// The copy lost what was acknowledged, and it is the only member: nothing may be given up but by an administrator.
    pub(super) fn lost(&self, knows: OsdId) {
        tracing::error!(
            pg = %self.id, osd = %self.osd.me, %knows,
            "the only member's copy of this placement group lost acknowledged writes, of which another OSD knows: nothing \
             is served, and nothing overwritten. Keep the data directories of both; check the disk of this one. To give \
             those writes up for good, stop the OSD that knows of them and remove its data directory: then this copy counts"
        );
    }

    fn tell_mon(&mut self, other: OsdId, joined: bool) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        let config = self.pg.status().config;
        self.jobs.push(Box::pin(async move {
            while osd.map.current().pgs.get(&pg).is_some_and(|found| found.config == config) {
                let told = if joined {
                    osd.mon.confirm_member(pg, config, other).await
                } else {
                    osd.mon.demote_member(pg, config, other).await
                };
                match told {
                    Ok(_) => break,
                    Err(error) if error.is_retryable() && error.reason != Reason::StaleEpoch => {
                        tracing::debug!(%pg, %other, joined, %error, "the mon does not take it yet");
                    }
                    Err(error) => {
                        tracing::warn!(%pg, %other, joined, %error, "the mon refused another configuration");
                        break;
                    }
                }
                tokio::time::sleep(MON_PAUSE).await;
            }
            Done::Told
        }));
    }

    pub(super) fn list_leftover(&mut self) {
        let (osd, pg) = (Arc::clone(&self.osd), self.id);
        self.jobs.push(Box::pin(async move {
            let list = move |engine: &dyn Engine| {
                let mut objects = Vec::new();
                loop {
                    let page = engine.list_objects(pg, objects.last().copied(), LIST)?;
                    let more = page.len() == LIST;
                    objects.extend(page.into_iter().map(|(object, _)| object));
                    if !more {
                        return Ok(objects);
                    }
                }
            };
            Done::Leftover(osd.reads.run(list).await.map_err(engine_error))
        }));
    }
}
