//! Where the targets of a request stand: in which subtree, and how the request says so there.

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{Caller, Crossing, OpenFlag, Target, operation::Op};
use pando_proto::{Errno, Ino, MAX_PATH_BYTES, SubtreeId};

use super::routes::{Routes, Way, without_slash};
use crate::Error;

/// A path may grow by what symlinks say, but not without end.
const LONGEST_PATH: usize = 16 * MAX_PATH_BYTES;

/// One target of a request.
#[derive(Clone, Debug)]
struct Place {
    subtree: SubtreeId,
    route: u64,
    /// As the caller gave it.
    original: Target,
    /// The target's path is the end of the original one: only directories were passed, and no `..`.
    plain: bool,
}

/// The targets of a request, at most two, and the subtree that is to be asked next.
#[derive(Clone, Debug)]
pub(super) struct Places {
    places: [Option<Place>; 2],
    at: SubtreeId,
}

impl Default for Places {
    fn default() -> Self {
        Self { places: [None, None], at: ROOT_SUBTREE }
    }
}

impl Places {
    /// Sets out: from the root, or from where a known way leads; with what begins at an inode, in the subtree `start`.
    pub fn begin(op: &mut Op, start: SubtreeId, routes: &Routes, map: &ClusterMap) -> Self {
        let Targets { caller, slots } = targets(op);
        let places = slots.map(|slot| {
            let Slot { target, names } = slot?;
            let target = target.as_mut()?;
            let subtree = if target.base == 0 { ROOT_SUBTREE } else { start };
            let mut place = Place { subtree, route: 0, original: target.clone(), plain: target.base == 0 };
            if place.plain
                && let Some(caller) = caller
                && let Some((way, end)) = routes.find(map, caller, &target.path, names)
            {
                (place.subtree, place.route) = (way.subtree, way.route);
                *target = Target { base: way.base, path: rest(&target.path, end) };
            }
            Some(place)
        });
        let at = places[0].as_ref().map_or(ROOT_SUBTREE, |place| place.subtree);
        Self { places, at }
    }

    /// Where the request is to be sent: to the subtree of its first target, later to that of the last answer's
    /// first crossing. The root answers what has no target.
    pub fn subtree(&self) -> SubtreeId {
        self.at
    }

    /// Versions of the ways to both targets, and where the second one leads. That to the first one says nothing to a
    /// subtree it is not in.
    pub fn routes(&self) -> (u64, (u64, SubtreeId)) {
        let [first, second] = &self.places;
        let first = first.as_ref().filter(|place| place.subtree == self.at);
        let second = second.as_ref().map_or((0, SubtreeId(0)), |place| (place.route, place.subtree));
        (first.map_or(0, |place| place.route), second)
    }

    /// Goes on where crossings say, to the subtree of the first of them.
    ///
    /// Errors: they make no sense.
    pub fn cross(&mut self, op: &mut Op, crossings: &[Crossing], routes: &Routes) -> Result<(), Error> {
        let mut at = None;
        // A target crosses at most once.
        for crossing in crossings.iter().take(self.places.len()) {
            let subtree = self.cross_one(op, crossing, routes)?;
            at.get_or_insert(subtree);
        }
        self.at = at.ok_or_else(|| Error::protocol("no crossing"))?;
        Ok(())
    }

    /// Puts one target where a crossing says, and remembers the way if that is allowed. Returns its subtree.
    fn cross_one(&mut self, op: &mut Op, crossing: &Crossing, routes: &Routes) -> Result<SubtreeId, Error> {
        let nonsense = || Error::protocol("a crossing that leads nowhere");
        let index = usize::try_from(crossing.target).unwrap_or(usize::MAX);
        let place = self.places.get_mut(index).and_then(Option::as_mut).ok_or_else(nonsense)?;
        let Targets { caller, slots } = targets(op);
        let target = slots.into_iter().nth(index).flatten().and_then(|slot| slot.target.as_mut());
        let target = target.ok_or_else(nonsense)?;
        let base = Ino(crossing.base);
        if crossing.subtree == 0 || base.0 == 0 || !base.is_valid() || crossing.path.len() > LONGEST_PATH {
            return Err(nonsense());
        }
        let way = Way { subtree: SubtreeId(crossing.subtree), base: crossing.base, route: crossing.route };
        let here = if target.base == 0 { Ino::ROOT.0 } else { target.base };
        if crossing.path == target.path && crossing.base == here {
            // Asked where it is not: no step further, and the way that it came is the one to be checked.
            if place.route != 0 && place.subtree != way.subtree {
                // That way ends in another subtree by now.
                routes.forget(place.subtree);
                *target = place.original.clone();
                (place.subtree, place.route, place.plain) = (ROOT_SUBTREE, 0, place.original.base == 0);
                return Ok(ROOT_SUBTREE);
            }
            place.subtree = way.subtree;
            target.base = here;
            return Ok(way.subtree);
        }
        let passed = usize::try_from(crossing.consumed).unwrap_or(usize::MAX);
        place.plain = place.plain
            && passed > 0
            && target.path.get(passed..).is_some_and(|end| without_slash(end) == &crossing.path[..]);
        if place.plain
            && let Some(caller) = caller
        {
            let before = place.original.path.len() - target.path.len();
            routes.remember(caller, whole_components(&place.original.path[..before + passed]), way);
        }
        (place.subtree, place.route) = (way.subtree, way.route);
        *target = Target { base: crossing.base, path: crossing.path.clone() };
        Ok(way.subtree)
    }

    /// An error names a target as it was asked for last; the caller knows it as it was given. What is neither is left to
    /// the caller's own knowledge, for it would be read as if it began at the root.
    pub fn name_as_given(&self, op: &mut Op, error: &mut pando_proto::Error) {
        let Some(named) = &error.path else { return };
        let mut crossed = false;
        let mut given = None;
        for (place, slot) in self.places.iter().zip(targets(op).slots) {
            let (Some(place), Some(slot)) = (place, slot) else { continue };
            let Some(target) = slot.target else { continue };
            crossed |= *target != place.original;
            // Of two that are called the same, what is missing is the first, and what is in the way the second.
            if target.path == named[..] && (given.is_none() || error.errno != Errno::ENOENT) {
                given = Some(place.original.path.to_vec());
            }
        }
        if crossed {
            error.path = given;
        }
    }

    /// Takes the request back to what the caller gave, and forgets the ways that it took.
    pub fn go_back(&mut self, op: &mut Op, routes: &Routes) {
        let places = std::mem::take(self);
        for (place, slot) in places.places.into_iter().zip(targets(op).slots) {
            let (Some(place), Some(slot)) = (place, slot) else { continue };
            if place.route != 0 {
                routes.forget(place.subtree);
            }
            *slot.target = Some(place.original);
        }
    }
}

fn rest(path: &Bytes, end: usize) -> Bytes {
    let after = without_slash(&path[end..]).len();
    path.slice(path.len() - after..)
}

fn whole_components(prefix: &[u8]) -> &[u8] {
    let end = prefix.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &prefix[..end]
}

/// A target, and whether the operation concerns the last name itself: a name belongs to the subtree of the directory
/// that holds it, also if it is that of another subtree's root.
struct Slot<'a> {
    target: &'a mut Option<Target>,
    names: bool,
}

struct Targets<'a> {
    caller: Option<&'a Caller>,
    slots: [Option<Slot<'a>>; 2],
}

macro_rules! one {
    ($request:ident, $names:expr) => {{
        let names = $names;
        let slot = Slot { target: &mut $request.target, names };
        Targets { caller: $request.caller.as_ref(), slots: [Some(slot), None] }
    }};
}

macro_rules! two {
    ($request:ident, $first:ident, $second:ident) => {{
        let first = Slot { target: &mut $request.$first, names: true };
        let second = Slot { target: &mut $request.$second, names: true };
        Targets { caller: $request.caller.as_ref(), slots: [Some(first), Some(second)] }
    }};
}

fn targets(op: &mut Op) -> Targets<'_> {
    let creates = |flags: u32| flags & OpenFlag::Create as u32 != 0;
    match op {
        Op::Stat(request) => one!(request, false),
        Op::SetAttr(request) => one!(request, false),
        Op::Access(request) => one!(request, false),
        Op::Open(request) => one!(request, creates(request.flags)),
        Op::ReadFile(request) => one!(request, false),
        Op::WriteFile(request) => one!(request, creates(request.flags)),
        Op::Mkdir(request) => one!(request, true),
        Op::Unlink(request) => one!(request, true),
        Op::Rmdir(request) => one!(request, true),
        Op::Symlink(request) => one!(request, true),
        Op::Readlink(request) => one!(request, false),
        Op::Readdir(request) => one!(request, false),
        Op::GetXattr(request) => one!(request, false),
        Op::SetXattr(request) => one!(request, false),
        Op::ListXattr(request) => one!(request, false),
        Op::RemoveXattr(request) => one!(request, false),
        Op::Rename(request) => two!(request, from, to),
        Op::Link(request) => two!(request, existing, link),
        Op::Close(_)
        | Op::Read(_)
        | Op::Write(_)
        | Op::GrantSize(_)
        | Op::ReportSize(_)
        | Op::Statfs(_)
        | Op::Reclaim(_) => Targets { caller: None, slots: [None, None] },
    }
}

/// The first target as it stands now.
pub(super) fn first_target(op: &mut Op) -> Option<Target> {
    let [first, _] = targets(op).slots;
    first?.target.clone()
}
