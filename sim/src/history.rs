//! Is a history linearizable (I5)? A search in the manner of Wing and Gong (J. Parallel Distrib. Comput. 17, 1993)
//! with the memory that Lowe added: states that were tried are not tried again.
//!
//! The object is one small directory: a few names, each absent or holding a value that is written only once. An
//! operation whose outcome its client never learnt may take effect at any time after it began, or never.

use std::collections::HashSet;

/// Names in the directory.
pub const NAMES: usize = 3;
/// Searches that look at more states than this are given up as undecided.
const MOST_STATES: usize = 2_000_000;

/// An operation; names are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a name with a value; refused if it is there.
    Create(usize, u64),
    /// Gives a name a value, whether it is there or not.
    Put(usize, u64),
    /// Removes a name.
    Remove(usize),
    /// Moves what a name holds to another, whatever that held.
    Rename(usize, usize),
    /// Exchanges what two names hold.
    Exchange(usize, usize),
    /// Looks at the value of a name.
    Read(usize),
    /// Which names there are.
    List,
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
        Call::Create(name, value) | Call::Put(name, value) => {
            after[name] = Some(value);
            Answer::Done
        }
        Call::Remove(name) | Call::Rename(name, _) if state[name].is_none() => Answer::Absent,
        Call::Exchange(one, other) if state[one].is_none() || state[other].is_none() => Answer::Absent,
        Call::Remove(name) => {
            after[name] = None;
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
        Call::List => {
            Answer::Names((0..NAMES).filter(|name| state[*name].is_some()).fold(0, |bits, at| bits | 1 << at))
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

struct Search<'a> {
    events: &'a [Event],
    tried: HashSet<(Vec<u64>, State)>,
    /// The longest order found, for people.
    longest: Vec<usize>,
}

/// Looks for an order of all events that explains every answer.
pub fn check(events: &[Event]) -> Verdict {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.begun);
    let mut search = Search { events: &events, tried: HashSet::new(), longest: Vec::new() };
    let (mut done, mut state, mut order): (Vec<u64>, State, Vec<usize>) =
        (vec![0; events.len().div_ceil(64)], [None; NAMES], Vec::new());
    // The stack holds, for each event taken, the state before it and where to go on looking.
    let mut stack: Vec<(usize, State)> = Vec::new();
    let mut from = 0;
    loop {
        if search.is_complete(&done) {
            return Verdict::Linearizable;
        }
        if search.tried.len() > MOST_STATES {
            return Verdict::Undecided;
        }
        match search.next(&done, state, from) {
            Some((at, after)) => {
                stack.push((at, state));
                done[at / 64] |= 1 << (at % 64);
                (state, from) = (after, 0);
                order.push(at);
                if order.len() > search.longest.len() {
                    search.longest.clone_from(&order);
                }
            }
            None => match stack.pop() {
                Some((at, before)) => {
                    done[at / 64] &= !(1 << (at % 64));
                    (state, from) = (before, at + 1);
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
    fn is_complete(&self, done: &[u64]) -> bool {
        self.events.iter().enumerate().all(|(at, event)| event.ended.is_none() || is_done(done, at))
    }

    /// The next event from `from` on that may come now: no other has ended before it began, and its answer is right.
    fn next(&mut self, done: &[u64], state: State, from: usize) -> Option<(usize, State)> {
        let left = || self.events.iter().enumerate().filter(|(at, _)| !is_done(done, *at));
        let first_end = left().filter_map(|(_, event)| event.ended).map(|(ended, _)| ended).min().unwrap_or(u64::MAX);
        let candidates: Vec<usize> =
            left().map(|(at, _)| at).filter(|at| *at >= from && self.events[*at].begun < first_end).collect();
        for at in candidates {
            let event = self.events[at];
            let (answer, after) = step(state, event.call);
            if event.ended.is_some_and(|(_, seen)| seen != answer) || (event.ended.is_none() && after == state) {
                continue;
            }
            let mut with = done.to_vec();
            with[at / 64] |= 1 << (at % 64);
            if self.tried.insert((with, after)) {
                return Some((at, after));
            }
        }
        None
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
mod tests {
    use super::*;

    fn event(call: Call, begun: u64, ended: u64, answer: Answer) -> Event {
        Event { client: 0, call, begun, ended: Some((ended, answer)) }
    }

    fn lost(call: Call, begun: u64) -> Event {
        Event { client: 0, call, begun, ended: None }
    }

    #[test]
    fn what_happened_in_turn_has_one_order() {
        let events = [
            event(Call::Create(0, 7), 0, 1, Answer::Done),
            event(Call::Rename(0, 1), 2, 3, Answer::Done),
            event(Call::Read(1), 4, 5, Answer::Value(7)),
            event(Call::List, 6, 7, Answer::Names(2)),
        ];
        assert_eq!(check(&events), Verdict::Linearizable);
        let mut stale = events;
        stale[2] = event(Call::Read(0), 4, 5, Answer::Value(7));
        let Verdict::Not(why) = check(&stale) else { panic!("a stale read passed") };
        assert!(why.contains("Read(0)"), "{why}");
    }

    #[test]
    fn what_overlaps_may_come_in_any_order_but_only_one() {
        let both = |one, other| {
            check(&[
                event(Call::Create(0, 1), 0, 10, one),
                event(Call::Create(0, 2), 1, 9, other),
                event(Call::Read(0), 11, 12, Answer::Value(2)),
            ])
        };
        assert_eq!(both(Answer::Exists, Answer::Done), Verdict::Linearizable);
        assert!(matches!(both(Answer::Done, Answer::Exists), Verdict::Not(_)));
        assert!(matches!(both(Answer::Done, Answer::Done), Verdict::Not(_)));
    }

    #[test]
    fn a_lost_answer_may_mean_now_later_or_never_but_not_twice() {
        let seen = |answers: &[Answer]| {
            let mut events =
                vec![event(Call::Put(0, 1), 0, 1, Answer::Done), event(Call::Put(1, 2), 2, 3, Answer::Done)];
            events.push(lost(Call::Exchange(0, 1), 4));
            let reads = (0..).zip(answers).map(|(at, answer)| event(Call::Read(0), 5 + 2 * at, 6 + 2 * at, *answer));
            events.extend(reads);
            check(&events)
        };
        let (old, new) = (Answer::Value(1), Answer::Value(2));
        assert_eq!(seen(&[old, old]), Verdict::Linearizable, "never");
        assert_eq!(seen(&[old, new]), Verdict::Linearizable, "later");
        assert!(matches!(seen(&[new, old]), Verdict::Not(_)), "I4: done and undone again");
    }
}
