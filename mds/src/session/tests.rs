use super::*;
use pando_cluster_map::{Session, Subtree};
use pando_proto::Rank;

#[test]
fn r19_only_those_are_awaited_who_may_have_met_an_earlier_owner() {
    let mut map = ClusterMap::default();
    for (client, born, rank) in [(1, 7, None), (2, 8, None), (3, 9, None), (4, 1, Some(Rank(0)))] {
        let session = Session { since: Epoch(born), rank, ..Session::default() };
        map.sessions.insert(ClientId(client), session);
    }
    map.subtrees.insert(SubtreeId(5), Subtree { since: Epoch(8), ..Subtree::default() });
    map.subtrees.insert(SubtreeId(6), Subtree::default());
    let of = |subtree| awaited(&map, SubtreeId(subtree)).map(|client| client.0).collect::<Vec<_>>();
    assert_eq!(of(5), [1]);
    assert_eq!(of(6), [1, 2, 3], "of a map that does not say since when");
}

#[test]
fn only_silent_clients_are_swept() {
    let sessions = Sessions::default();
    let mut map = ClusterMap::default();
    for (client, rank) in [(1, None), (2, None), (3, Some(Rank(0)))] {
        map.sessions.insert(ClientId(client), Session { rank, ..Session::default() });
    }
    let (at, timeout) = (Duration::from_secs, Duration::from_secs(10));
    assert_eq!(sessions.sweep(&map, at(0), timeout), []);
    sessions.heard(ClientId(2), at(5));
    assert_eq!(sessions.sweep(&map, at(10), timeout), [ClientId(1)]);
    assert_eq!(sessions.sweep(&map, at(15), timeout), [ClientId(1), ClientId(2)]);
}

#[test]
fn r9_a_keep_alive_concerns_only_actors_that_remember_something_older() {
    let (sessions, client) = (Sessions::default(), ClientId(1));
    let [one, two, three] = [5, 6, 7].map(|subtree| Interest::new(sessions.clone(), SubtreeId(subtree)));
    let behind = |lowest| sessions.confirm(client, lowest).behind;
    one.remembers(client);
    two.remembers(client);
    three.remembers(ClientId(2));
    assert_eq!(sessions.tables_of(client), 2);
    assert_eq!(behind(10), [5, 6].map(SubtreeId));
    assert_eq!(behind(10), [], "they know");
    assert_eq!(behind(4), []);
    assert_eq!((one.lowest(client), three.lowest(client)), (10, 10), "R9: whoever asks learns it; it never goes back");
    assert_eq!(one.lowest(ClientId(2)), 0);
    two.forgets(client);
    three.remembers(client);
    assert_eq!(behind(10), [7].map(SubtreeId), "it may have been adopted from an earlier owner");
    assert_eq!(behind(11), [5, 7].map(SubtreeId));
    drop(one);
    assert_eq!(behind(12), [7].map(SubtreeId));
    assert_eq!(sessions.tables_of(client), 1);
}

#[test]
fn r19_a_keep_alive_is_told_who_waits_for_reclaims() {
    let sessions = Sessions::default();
    let [one, two] = [5, 6].map(|subtree| Interest::new(sessions.clone(), SubtreeId(subtree)));
    one.awaits([1, 2].map(ClientId).into_iter());
    two.awaits([1].map(ClientId).into_iter());
    let awaited = |client| sessions.confirm(ClientId(client), 10).awaited;
    assert_eq!(awaited(1), [5, 6].map(SubtreeId));
    assert_eq!(awaited(1), [5, 6].map(SubtreeId), "each time");
    assert_eq!(awaited(2), [5].map(SubtreeId));
    assert_eq!(awaited(3), []);
    one.awaits_no_more(ClientId(1));
    assert_eq!(awaited(1), [6].map(SubtreeId));
    drop(two);
    assert_eq!(awaited(1), []);
    assert_eq!(sessions.tables_of(ClientId(1)), 0, "whoever is waited for is not remembered for that");
}

#[test]
fn r9_a_later_stream_changes_nothing_of_what_is_known() {
    let (sessions, client) = (Sessions::default(), ClientId(1));
    let interest = Interest::new(sessions.clone(), SubtreeId(5));
    interest.remembers(client);
    sessions.confirm(client, 10);
    let meter = || Arc::new(Meter::new(Arc::default()));
    let connection = || Arc::new(Connection::new(client, pando_rpc::queue::coalescing(8, 8).0, meter()));
    let (first, second) = (connection(), connection());
    sessions.attach(&first, Duration::ZERO);
    sessions.attach(&second, Duration::ZERO);
    assert_eq!((first.is_replaced(), second.is_replaced()), (true, false), "R10");
    assert_eq!((interest.lowest(client), sessions.tables_of(client)), (10, 1));
}

#[test]
fn r9_whoever_is_only_waited_for_is_silent_from_the_first_sweep_on() {
    let (sessions, client) = (Sessions::default(), ClientId(1));
    let mut map = ClusterMap::default();
    map.sessions.insert(client, Session::default());
    let interest = Interest::new(sessions.clone(), SubtreeId(5));
    interest.awaits([client].into_iter());
    interest.remembers(client);
    let (at, timeout) = (Duration::from_secs, Duration::from_secs(10));
    assert_eq!(sessions.sweep(&map, at(100), timeout), [], "an actor that knows it is no word of the client");
    assert_eq!(sessions.sweep(&map, at(109), timeout), []);
    assert_eq!(sessions.sweep(&map, at(110), timeout), [client]);
    assert!(sessions.is_silent(client, at(110), timeout));
    // Once it is over nothing is kept of it.
    map.sessions.clear();
    assert_eq!(sessions.sweep(&map, at(112), timeout), []);
    assert_eq!(sessions.tables_of(client), 0);
    assert!(sessions.lock().is_empty(), "I8");
}
