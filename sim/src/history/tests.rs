use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

fn event(call: Call, begun: u64, ended: u64, answer: Answer) -> Event {
    Event { client: 0, call, begun, ended: Some((ended, answer)) }
}

#[test]
fn many_lost_answers_do_not_make_it_undecided() {
    // Thirty writes of which nobody knows, among a hundred that are seen at once, one of them wrongly.
    let mut events = Vec::new();
    for at in 0..100u64 {
        let (begun, name) = (at * 10, (at % 3) as usize);
        events.push(event(Call::Put(name, at), begun, begun + 3, Answer::Done));
        events.push(event(Call::Read(name), begun + 4, begun + 5, Answer::Value(at)));
        if at % 3 == 0 {
            events.push(lost(Call::Put((at % 2) as usize, 1000 + at), begun + 1));
        }
    }
    assert_eq!(check(&events), Verdict::Linearizable);
    events.push(event(Call::Read(0), 2000, 2001, Answer::Value(1030)));
    assert_eq!(check(&events), Verdict::Linearizable, "one of them comes late");
    events.push(event(Call::Read(0), 2002, 2003, Answer::Value(7777)));
    assert!(matches!(check(&events), Verdict::Not(_)), "nobody wrote that");
}

#[test]
fn a_lost_write_that_two_others_saw_may_come_late_but_only_in_one_place() {
    let history = |last| {
        check(&[
            lost(Call::Put(0, 1), 0),
            lost(Call::Put(0, 2), 1),
            event(Call::Read(0), 2, 3, Answer::Value(2)),
            event(Call::Read(0), 4, 5, Answer::Value(1)),
            event(Call::Read(0), 6, 7, last),
        ])
    };
    assert_eq!(history(Answer::Value(1)), Verdict::Linearizable);
    assert!(matches!(history(Answer::Value(2)), Verdict::Not(_)));
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
        event(Call::List(0b111), 6, 7, Answer::Names(2)),
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
        let mut events = vec![event(Call::Put(0, 1), 0, 1, Answer::Done), event(Call::Put(1, 2), 2, 3, Answer::Done)];
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

#[test]
fn r18_what_is_renamed_elsewhere_is_seen_at_one_of_the_places_always() {
    let seen = |first: (usize, Answer), second: (usize, Answer)| {
        check(&[
            event(Call::Put(0, 7), 0, 1, Answer::Done),
            event(Call::Rename(0, 2), 2, 9, Answer::Done),
            event(Call::Read(first.0), 3, 4, first.1),
            event(Call::Read(second.0), 5, 6, second.1),
        ])
    };
    let (there, absent) = (Answer::Value(7), Answer::Absent);
    assert_eq!(seen((0, there), (2, there)), Verdict::Linearizable);
    assert_eq!(seen((2, absent), (0, there)), Verdict::Linearizable);
    assert!(matches!(seen((2, there), (0, there)), Verdict::Not(_)), "at both");
    assert!(matches!(seen((0, absent), (2, absent)), Verdict::Not(_)), "at neither");
}

#[test]
fn names_of_one_file_hold_the_same_and_are_counted() {
    let mut events = vec![
        event(Call::Put(0, 1), 0, 1, Answer::Done),
        event(Call::Link(0, 2), 2, 3, Answer::Done),
        event(Call::Link(0, 2), 4, 5, Answer::Exists),
        event(Call::Put(2, 5), 6, 7, Answer::Done),
        event(Call::Read(0), 8, 9, Answer::Value(5)),
        event(Call::Rename(0, 2), 10, 11, Answer::Done),
        event(Call::Count(0), 12, 13, Answer::Count(2)),
        event(Call::List(0b1100), 14, 15, Answer::Names(0b100)),
    ];
    assert_eq!(check(&events), Verdict::Linearizable);
    events[6].ended = Some((13, Answer::Count(1)));
    assert!(matches!(check(&events), Verdict::Not(_)));
}

/// All orders, one after the other.
fn naive(events: &[Event], done: u32, state: State) -> bool {
    let left = || events.iter().enumerate().filter(|(at, _)| done & 1 << at == 0);
    let Some(first_end) = left().filter_map(|(_, event)| event.ended).map(|(ended, _)| ended).min() else {
        return true;
    };
    left().filter(|(_, event)| event.begun < first_end).any(|(at, event)| {
        let (answer, after) = step(state, event.call);
        event.ended.is_none_or(|(_, seen)| seen == answer) && naive(events, done | 1 << at, after)
    })
}

#[test]
fn it_says_what_a_look_at_all_orders_says() {
    let mut dice = ChaCha8Rng::seed_from_u64(1);
    let mut verdicts = [0, 0];
    for _ in 0..3000 {
        let mut events = Vec::new();
        for value in 0..8 {
            let [one, other] = [(); 2].map(|()| dice.random_range(0..NAMES));
            let call = match dice.random_range(0..9) {
                0 => Call::Create(one, value),
                1..=2 => Call::Put(one, value),
                3 => Call::Remove(one),
                4 => Call::Rename(one, (one + 1 + other % 2) % NAMES),
                5 => Call::Exchange(one, (one + 1 + other % 2) % NAMES),
                6 => Call::Link(one, (one + 1 + other % 2) % NAMES),
                7 => Call::Count(one),
                _ => Call::Read(one),
            };
            let begun = dice.random_range(0..20) * 100 + value;
            let answer = match call {
                Call::Read(_) if dice.random_bool(0.7) => Answer::Value(dice.random_range(0..8)),
                Call::Count(_) if dice.random_bool(0.7) => Answer::Count(dice.random_range(1..3)),
                Call::Link(..) if dice.random_bool(0.3) => Answer::Exists,
                Call::Put(..) => Answer::Done,
                Call::Create(..) if dice.random_bool(0.3) => Answer::Exists,
                Call::Create(..) => Answer::Done,
                _ if dice.random_bool(0.5) => Answer::Absent,
                Call::Read(_) => Answer::Value(0),
                Call::Count(_) => Answer::Count(1),
                _ => Answer::Done,
            };
            let ended = dice.random_bool(0.7).then(|| (begun + dice.random_range(1..1500), answer));
            events.push(Event { client: 0, call, begun, ended });
        }
        let is_right = naive(&events, 0, [None; NAMES]);
        verdicts[usize::from(is_right)] += 1;
        assert_eq!(check(&events) == Verdict::Linearizable, is_right, "{events:?}");
    }
    assert!(verdicts.iter().all(|count| *count > 300), "{verdicts:?}");
}
