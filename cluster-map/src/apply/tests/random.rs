//! Any commands, one after the other.

use super::*;

fn any_command() -> impl Strategy<Value = Command> {
    let osd = 1..6u32;
    prop_oneof![
        4 => (1..6u8, 1..4u8).prop_map(|(number, boot)| register_osd(number, boot)),
        4 => (osd.clone(), 1..4u64).prop_map(|(id, incarnation)| Command::OsdDown(daemon(id, incarnation))),
        2 => (osd.clone(), 1..4u64).prop_map(|(id, incarnation)| Command::OsdUp(daemon(id, incarnation))),
        2 => (osd.clone(), 1..4u64).prop_map(|(id, incarnation)| Command::OsdOut(daemon(id, incarnation))),
        6 => (1..3u32, 0..4u32, 1..8u64, osd).prop_map(|(pool, index, config, osd_id)| {
            Command::ConfirmMember(ConfirmMember { pool, index, config, osd_id })
        }),
        3 => (1..3u32, 0..4u32, 1..8u64, 1..6u32).prop_map(|(pool, index, config, osd_id)| {
            Command::DemoteMember(ConfirmMember { pool, index, config, osd_id })
        }),
        1 => (1..3u32, 0..4u32, 1..8u64, 1..6u32).prop_map(|(pool, index, config, osd_id)| {
            Command::OverridePg(ConfirmMember { pool, index, config, osd_id })
        }),
        1 => (0..3u32, 1..4u8).prop_map(|(rank, boot)| register_rank(rank, boot)),
        12 => subtrees::any_subtree_command(),
        1 => (0..3u32, 1..4u64).prop_map(|(id, incarnation)| Command::RankUp(daemon(id, incarnation))),
        1 => (0..6u32).prop_map(|id| Command::RemoveOsd(RemoveDaemon { id })),
        1 => (0..3u32).prop_map(|id| Command::RemoveRank(RemoveDaemon { id })),
        1 => (0..9u8).prop_map(|nonce| register_client(nonce, "p")),
        1 => (9..12u8, 0..3u32, 1..4u64).prop_map(|(nonce, id, incarnation)| {
            let of_rank = Some(daemon(id, incarnation));
            Command::RegisterClient(RegisterClient { nonce: vec![nonce], of_rank, ..RegisterClient::default() })
        }),
        1 => (0..9u64).prop_map(|client_id| Command::EndSession(EndSession { client_id })),
        1 => (0..3u32, 0..3u32, 1..3u64, 0..9u8, 0..1000u64).prop_map(|(shard, rank, incarnation, nonce, count)| {
            Command::AllocateInos(AllocateInos { shard, rank, incarnation, count, nonce: vec![nonce] })
        }),
        1 => (100..70_000u64).prop_map(|value| {
            Command::SetSetting(SetSetting { name: "lease_millis".into(), value: value.to_string() })
        }),
        1 => (0..3u64).prop_map(|since| Command::ForgetLongerLease(ForgetLongerLease { since })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_keep_the_invariants(
        commands in prop::collection::vec(any_command(), 0..120),
        expected in 1..5u32,
        size in 1..4u32,
    ) {
        let mut map = ClusterMap::default();
        step(&mut map, &create(expected.max(size), size)).unwrap();
        for command in commands {
            // Confirmations of the true configuration get somewhere.
            let command = match command {
                Command::ConfirmMember(mut confirm) if confirm.config > 3 => {
                    let id = PgId { pool: pando_proto::PoolId(confirm.pool), index: confirm.index };
                    let pg = &map.pgs[&id];
                    confirm.config = pg.config;
                    confirm.osd_id = pg.joining.first().map_or(confirm.osd_id, |osd| osd.0);
                    Command::ConfirmMember(confirm)
                }
                Command::DemoteMember(mut demote) if demote.config > 3 => {
                    let id = PgId { pool: pando_proto::PoolId(demote.pool), index: demote.index };
                    demote.config = map.pgs[&id].config;
                    Command::DemoteMember(demote)
                }
                Command::OverridePg(mut chosen) if chosen.config > 3 => {
                    let id = PgId { pool: pando_proto::PoolId(chosen.pool), index: chosen.index };
                    chosen.config = map.pgs[&id].config;
                    Command::OverridePg(chosen)
                }
                Command::ForgetLongerLease(ForgetLongerLease { since: 0 }) => {
                    let since = map.longer_lease.map_or(0, |longer| longer.since.0);
                    Command::ForgetLongerLease(ForgetLongerLease { since })
                }
                other => subtrees::aim(&map, other),
            };
            let reread = Command::from_bytes(&command.to_bytes()).unwrap();
            let mut twin = map.clone();
            let result = step(&mut map, &command);
            prop_assert_eq!(twin.apply(&reread), result, "deterministic");
            prop_assert_eq!(&twin, &map);
        }
        prop_assert_eq!(ClusterMap::from_proto(&map.to_proto()), Ok(map));
    }
}
