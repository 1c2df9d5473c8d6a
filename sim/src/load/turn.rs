//! What every operation of a load needs: whose turn it is, where its names are, and what its answers mean.

use pando_client::{Client, Error};
use pando_proto::Errno;
use rand_chacha::ChaCha8Rng;

use super::Tally;

/// What different subtrees do not do together; `None` once there is nothing of that kind.
const NOT_TOGETHER: Option<Errno> = None;
/// The directory that is renamed now and then, and its two names.
pub(super) const MOVING: [&str; 2] = ["d1", "e1"];

/// Where a load's tree is.
pub(super) struct Place {
    pub dir: String,
    /// Which of its two names the moving directory has.
    pub moved: usize,
}

impl Place {
    /// The path of a name of the model.
    pub fn path(&self, name: &str) -> String {
        match name.strip_prefix(MOVING[0]) {
            Some(rest) => format!("{}/{}{rest}", self.dir, MOVING[self.moved]),
            None => format!("{}/{name}", self.dir),
        }
    }
}

/// One operation's view of its load.
pub(super) struct Turn<'a> {
    pub client: &'a Client,
    pub place: &'a Place,
    pub dice: &'a mut ChaCha8Rng,
    pub tally: &'a mut Tally,
}

/// What became of an operation.
pub(super) enum Fate {
    Done,
    /// It may have happened, or not.
    Unknown,
    /// It did not happen, and not on account of what is in the tree.
    Never,
    Refused(Error),
}

pub(super) fn never_happened(error: &Error) -> bool {
    !error.outcome_is_unknown() && error.is_retryable()
}

/// Whether it was refused because subtrees do not do that together.
pub(super) fn is_apart(error: &Error) -> bool {
    NOT_TOGETHER == Some(error.errno())
}

impl Turn<'_> {
    pub fn path(&self, name: &str) -> String {
        self.place.path(name)
    }

    /// Sorts an answer, and counts it.
    pub fn fate<T>(&mut self, what: &str, result: Result<T, Error>) -> Fate {
        let (said, fate) = match result {
            Ok(_) => (what.to_owned(), Fate::Done),
            Err(error) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                return Fate::Unknown;
            }
            Err(error) if never_happened(&error) => (format!("{what}: never sent"), Fate::Never),
            Err(error) if is_apart(&error) => (format!("{what}: {}", error.errno()), Fate::Never),
            Err(error) => (format!("{what}: {}", error.errno()), Fate::Refused(error)),
        };
        self.tally.count(&said);
        fate
    }
}
