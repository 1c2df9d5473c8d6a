//! A commit that was refused because own content it builds on cannot be read (I10): the copy of one placement group is
//! damaged, and all others go on.

use std::sync::Arc;
use std::time::Duration;

use pando_osd_core::{Concerned, Pg, Position, Stored, keys};
use pando_proto::{Error, PgId, Reason};

use super::MapView;
use super::fetch::engine_error;
use super::task::Task;
use crate::engine::{CommitError, EngineError};
use crate::pgs::Osd;

/// So many repairs in a row that end with new damage: then the disk is not to be trusted.
const MAX_DAMAGES: u32 = 5;
/// How often a copy's position is read, should the engine fail, and how long it waits in between.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// A copy with what is durable of it. If it cannot tell what that is, it is damaged up to the configuration in which
/// this OSD registered: what it has promised before counts no more by then (R25), and other copies of the OSD go on.
pub(super) async fn copy(osd: &Osd, id: PgId, view: &MapView) -> Result<Pg, Error> {
    match stored(osd, id).await {
        Ok(stored) => Ok(Pg::new(id, osd.me, stored, osd.header_cache)),
        Err(error) if error.reason == Reason::Corrupt => {
            tracing::error!(pg = %id, %error, "this copy does not know its position: others have to replace it");
            Ok(Pg::damaged(id, osd.me, MIXTURE, osd.header_cache, view.configuration(id).number))
        }
        Err(error) => Err(error),
    }
}

/// Of a copy that cannot read it.
const MIXTURE: Stored = Stored {
    promised: 0,
    position: Position { config: 0, seq: 0 },
    incomplete: true,
    decided: Position { config: 0, seq: 0 },
};

/// What is durable of a copy.
async fn stored(osd: &Osd, id: PgId) -> Result<Stored, Error> {
    let read = async || osd.reads.run(move |engine| engine.get(id, &keys::POSITION)).await.map_err(engine_error);
    let mut tries = 1;
    let stored = loop {
        match read().await {
            // The disk may recover, and this is no reason to give up all other copies of the OSD.
            Err(error) if error.reason == Reason::Storage && tries < TRIES => tries += 1,
            read => break read?,
        }
        tokio::time::sleep(PAUSE).await;
    };
    Stored::decode(stored).ok_or_else(|| {
        let message = format!("placement group {id} has a format that this program does not know: use a newer one");
        Error::new(Reason::NewerFormat, message)
    })
}

impl Task {
    /// The oldest commit was refused, and all behind it are. Begins anew with what is durable.
    ///
    /// # Errors
    /// This OSD cannot go on.
    pub(super) async fn damaged(&mut self, error: EngineError) -> Result<(), Error> {
        let concerned = self.pg.concerned();
        self.damages += u32::from(concerned == Concerned::Copy);
        if self.damages > MAX_DAMAGES {
            let message = format!("placement group {} was damaged again at each repair: {error}", self.id);
            return Err(Error::new(Reason::Storage, message));
        }
        // The first was refused, so it is no use to ask it again.
        self.commits.pop_front();
        for commit in std::mem::take(&mut self.commits) {
            match commit.await {
                Err(CommitError::Damaged(_)) => {}
                Err(error) => return Err(Error::new(Reason::Storage, error.to_string())),
                Ok(()) => {
                    let message = format!("placement group {}: a commit overtook one that was lost", self.id);
                    return Err(Error::new(Reason::Internal, message));
                }
            }
        }
        // What is under way belongs to the machine that goes.
        self.jobs.clear();
        self.discarding = false;
        let stored = match stored(&self.osd, self.id).await {
            Err(error) if error.reason == Reason::Corrupt => MIXTURE,
            stored => stored?,
        };
        self.osd.commits.heal(self.id);
        let (id, me, headers) = (self.id, self.osd.me, self.osd.header_cache);
        let config = self.pg.status().config;
        self.pg = match concerned {
            Concerned::Request(_) => Pg::new(id, me, stored, headers),
            Concerned::Copy | Concerned::Group => Pg::damaged(id, me, stored, headers, config),
        };
        self.tell_damage(concerned, &error);
        self.pg.set_sessions(Arc::clone(&self.view.sessions));
        self.pg.configure(self.view.configuration(id));
        self.pg.tick();
        Ok(())
    }

    fn tell_damage(&mut self, concerned: Concerned, error: &EngineError) {
        let pg = self.id;
        match concerned {
            Concerned::Copy => tracing::error!(%pg, %error, "this copy is damaged: its primary is to replace it"),
            Concerned::Group => tracing::error!(
                %pg, %error,
                "the primary's copy is damaged and serves nothing any more: another member takes over and repairs it"
            ),
            Concerned::Request(token) => {
                tracing::error!(%pg, %error, "a write was refused: the only copy is damaged there");
                if let Some(token) = token {
                    self.answer(token, Err(engine_error(error.clone())));
                }
            }
        }
        // Each may have been done, or not: whoever asked, asks again.
        for (_, open) in self.open.drain() {
            let message = format!("the copy of placement group {pg} is damaged: try again");
            open.responder.answer(Err(Error::new(Reason::Unavailable, message)));
        }
    }
}
