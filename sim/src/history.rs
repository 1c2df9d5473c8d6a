//! Is a history linearizable (I5)? A search in the manner of Wing and Gong (J. Parallel Distrib. Comput. 17, 1993)
//! with the memory that Lowe added: states that were tried are not tried again.
//!
//! The object is a few names, each absent or holding a value that is written only once, be they in one directory or in
//! several. Names that hold the same value are names of one file. An operation whose outcome its client never learnt may
//! take effect at any time after it began, or never.

use std::collections::HashSet;

/// Names at most.
pub const NAMES: usize = 4;
/// Searches that look at more states than this are given up as undecided.
const MOST_STATES: usize = 2_000_000;

/// An operation; names are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a name with a value; refused if it is there.
    Create(usize, u64),
    /// Gives the file that has a name a value, or makes a new one.
    Put(usize, u64),
    /// Removes a name.
    Remove(usize),
    /// Moves what a name holds to another, whatever that held. Between two names of one file it does nothing (rename(2)).
    Rename(usize, usize),
    /// Exchanges what two names hold.
    Exchange(usize, usize),
    /// Gives what the first name holds the second one as well; refused if that is there.
    Link(usize, usize),
    /// Looks at the value of a name.
    Read(usize),
    /// How many names the file has that has this one.
    Count(usize),
    /// Which there are of the names that have these bits.
    List(u8),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// There is such a name.
    Exists,
    /// There is no such name.
    Absent,
    /// The value.
    Value(u64),
    /// So many names.
    Count(u32),
    /// A bit for each name that is there.
    Names(u8),
}

/// One operation of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub client: u64,
    /// What.
    pub call: Call,
    /// When it was sent; moments are numbers in the order in which things happened.
    pub begun: u64,
    /// When the answer came, and which; `None`: it never came.
    pub ended: Option<(u64, Answer)>,
}

type State = [Option<u64>; NAMES];

/// The one thing that a call may answer in this state, and the state after it.
fn step(state: State, call: Call) -> (Answer, State) {
    let mut after = state;
    let answer = match call {
        Call::Create(name, _) if state[name].is_some() => Answer::Exists,
        Call::Put(name, value) if state[name].is_some() => {
            after.iter_mut().filter(|held| **held == state[name]).for_each(|held| *held = Some(value));
            Answer::Done
        }
        Call::Create(name, value) | Call::Put(name, value) => {
            after[name] = Some(value);
            Answer::Done
        }
        Call::Remove(name) | Call::Rename(name, _) | Call::Link(name, _) if state[name].is_none() => Answer::Absent,
        Call::Exchange(one, other) if state[one].is_none() || state[other].is_none() => Answer::Absent,
        Call::Remove(name) => {
            after[name] = None;
            Answer::Done
        }
        Call::Rename(from, to) if state[from] == state[to] => Answer::Done,
        Call::Link(_, new) if state[new].is_some() => Answer::Exists,
        Call::Link(name, new) => {
            after[new] = after[name];
            Answer::Done
        }
        Call::Rename(from, to) => {
            after[to] = after[from].take();
            Answer::Done
        }
        Call::Exchange(one, other) => {
            after.swap(one, other);
            Answer::Done
        }
        Call::Read(name) => state[name].map_or(Answer::Absent, Answer::Value),
        Call::Count(name) if state[name].is_none() => Answer::Absent,
        Call::Count(name) => Answer::Count(state.iter().filter(|held| **held == state[name]).count() as u32),
        Call::List(of) => {
            Answer::Names((0..NAMES).filter(|name| state[*name].is_some()).fold(0, |bits, at| bits | 1 << at) & of)
        }
    };
    (answer, after)
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order in which all answers are right.
    Linearizable,
    /// There is none; the longest order that was found, and what could not follow.
    Not(String),
    /// The search took too long.
    Undecided,
}

/// What has been tried: the events taken, the state they lead to, and those taken last whose outcome nobody knows.
type Tried = (Vec<u64>, State, Vec<Lost>);

/// An event without an answer, and the state before it.
type Lost = (usize, State);

struct Search<'a> {
    events: &'a [Event],
    tried: HashSet<Tried>,
    /// Events whose answer came.
    answered: usize,
    /// The longest order found, for people.
    longest: Vec<usize>,
}

/// Where a search is.
#[derive(Clone)]
struct Point {
    done: Vec<u64>,
    state: State,
    answered: usize,
    /// Those taken since the last one that has an answer.
    lost: Vec<Lost>,
}

/// Looks for an order of all events that explains every answer.
pub fn check(events: &[Event]) -> Verdict {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.begun);
    let answered = events.iter().filter(|event| event.ended.is_some()).count();
    let mut search = Search { events: &events, tried: HashSet::new(), answered, longest: Vec::new() };
    let mut order: Vec<usize> = Vec::new();
    let mut point =
        Point { done: vec![0; events.len().div_ceil(64)], state: [None; NAMES], answered: 0, lost: Vec::new() };
    // The stack holds, for each event taken, where that was, and it itself: the search goes on behind it.
    let mut stack: Vec<(usize, Point)> = Vec::new();
    let mut behind = None;
    loop {
        if point.answered == search.answered {
            return Verdict::Linearizable;
        }
        if search.tried.len() > MOST_STATES {
            return Verdict::Undecided;
        }
        match search.next(&point, behind) {
            Some((at, after)) => {
                stack.push((at, std::mem::replace(&mut point, after)));
                behind = None;
                order.push(at);
                if order.len() > search.longest.len() {
                    search.longest.clone_from(&order);
                }
            }
            None => match stack.pop() {
                Some((at, before)) => {
                    (point, behind) = (before, Some(search.turn(at)));
                    order.pop();
                }
                None => return Verdict::Not(search.explain()),
            },
        }
    }
}

fn is_done(done: &[u64], at: usize) -> bool {
    done[at / 64] & (1 << (at % 64)) != 0
}

impl Search<'_> {
    /// In which order events are tried: those last of which nobody knows whether they happened.
    fn turn(&self, at: usize) -> (bool, usize) {
        (self.events[at].ended.is_none(), at)
    }

    /// The next event behind that one that may come now: no other has ended before it began, and its answer is right.
    fn next(&mut self, point: &Point, behind: Option<(bool, usize)>) -> Option<(usize, Point)> {
        let mut first_end = u64::MAX;
        let mut candidates = Vec::new();
        // In the order in which they began: one that began after the first end cannot have ended before.
        for (at, event) in self.events.iter().enumerate().filter(|(at, _)| !is_done(&point.done, *at)) {
            if event.begun > first_end {
                break;
            }
            candidates.push(at);
            first_end = first_end.min(event.ended.map_or(u64::MAX, |(ended, _)| ended));
        }
        candidates
            .retain(|at| self.events[*at].begun < first_end && behind.is_none_or(|behind| self.turn(*at) > behind));
        candidates.sort_unstable_by_key(|at| self.turn(*at));
        for at in candidates {
            let event = self.events[at];
            let (answer, after) = step(point.state, event.call);
            let is_lost = event.ended.is_none();
            if event.ended.is_some_and(|(_, seen)| seen != answer) || (is_lost && after == point.state) {
                continue;
            }
            if (0..point.lost.len()).any(|which| self.comes_later(point, which, at, answer, after)) {
                continue;
            }
            let mut next = point.clone();
            next.done[at / 64] |= 1 << (at % 64);
            next.state = after;
            match is_lost {
                true => next.lost.push((at, point.state)),
                false => {
                    next.answered += 1;
                    next.lost.clear();
                }
            }
            if self.tried.insert((next.done.clone(), after, next.lost.clone())) {
                return Some((at, next));
            }
        }
        None
    }

    /// Whether one of the events of which nobody knows may as well come after what follows it up to `at`, or not at
    /// all. Then that is where it is looked for: it is only taken where something sees it.
    fn comes_later(&self, point: &Point, which: usize, at: usize, answer: Answer, after: State) -> bool {
        let (lost, before) = point.lost[which];
        let others = point.lost[which + 1..].iter();
        let state = others.fold(before, |state, (other, _)| step(state, self.events[*other].call).1);
        let (without, state) = step(state, self.events[at].call);
        let is_lost = self.events[at].ended.is_none();
        if !is_lost && without != answer {
            return false;
        }
        // Two of a kind that can change places are taken in one order.
        let may_change_places = !is_lost || (which + 1 == point.lost.len() && lost > at);
        state == after || (may_change_places && step(state, self.events[lost].call).1 == after)
    }

    fn explain(&self) -> String {
        let mut state: State = [None; NAMES];
        for at in &self.longest {
            state = step(state, self.events[*at].call).1;
        }
        let taken = self.longest.iter().rev().take(12).rev().map(|at| format!("  {:?}", self.events[*at]));
        let left = (0..self.events.len()).filter(|at| !self.longest.contains(at)).take(8);
        let left = left.map(|at| format!("  {:?}", self.events[at]));
        format!(
            "not linearizable: after {} of {} events, the last of which are\n{}\nthe names hold {state:?}, and none of these can follow:\n{}",
            self.longest.len(),
            self.events.len(),
            taken.collect::<Vec<_>>().join("\n"),
            left.collect::<Vec<_>>().join("\n"),
        )
    }
}

#[cfg(test)]
mod tests;
