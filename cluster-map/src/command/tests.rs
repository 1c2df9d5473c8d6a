use pando_proto::{ClientId, Epoch, Ino, OsdId, SubtreeId};

use super::*;
use crate::map::Decision;

#[test]
fn commands_and_results_survive_their_encoding() {
    let command =
        Command::AllocateInos(AllocateInos { shard: 3, rank: 1, incarnation: 2, count: 1 << 20, nonce: vec![9; 16] });
    assert_eq!(Command::from_bytes(&command.to_bytes()), Ok(command));
    for value in [
        CommandValue::Done,
        CommandValue::Osd(OsdId(4), 5),
        CommandValue::Rank(6),
        CommandValue::Client(ClientId(7)),
        CommandValue::Inos(Ino(8), 9),
        CommandValue::Subtree(SubtreeId(10)),
        CommandValue::Move(11),
        CommandValue::Decided(Decision::Aborted),
        CommandValue::Decided(Decision::Committed),
        CommandValue::Decided(Decision::Cycle),
    ] {
        let result = CommandResult { epoch: Epoch(11), value };
        assert_eq!(CommandResult::from_bytes(&result.to_bytes()), Ok(result));
    }
}

/// The log format is frozen: these bytes were written by the first version.
#[test]
fn the_log_format_stays() {
    let command = Command::OsdDown(DaemonState { id: 2, incarnation: 300 });
    assert_eq!(command.to_bytes(), [1, 0x32, 5, 0x08, 2, 0x10, 0xac, 2]);
    // Written before it could name new owners.
    let command = Command::RankDown(RankDown { id: 2, incarnation: 300, assignments: vec![] });
    assert_eq!(command.to_bytes(), [1, 0x4a, 5, 0x08, 2, 0x10, 0xac, 2]);
    let command = Command::StartMove(StartMove { subtree: 3, to: 1, to_merge: false });
    assert_eq!(command.to_bytes(), [1, 0xa2, 1, 4, 0x08, 3, 0x10, 1]);
    // Written when the description told what is a rank.
    let rank = RegisterClient { nonce: vec![7], description: "mds.3".into(), ..RegisterClient::default() };
    let command = Command::RegisterClient(rank);
    assert_eq!(command.to_bytes(), [&[1, 0x22, 10, 0x0a, 1, 7, 0x12, 5][..], b"mds.3"].concat());
    let command = Command::ForgetLongerLease(ForgetLongerLease { since: 300 });
    assert_eq!(command.to_bytes(), [1, 0xf2, 1, 3, 0x08, 0xac, 2]);
    let command = Command::RenewSubtree(RenewSubtree { subtree: 3, epoch: 300 });
    assert_eq!(command.to_bytes(), [1, 0xfa, 1, 5, 0x08, 3, 0x10, 0xac, 2]);
    let command = Command::RemoveRank(RemoveDaemon { id: 5 });
    assert_eq!(command.to_bytes(), [1, 0x82, 1, 2, 0x08, 5]);
    let command = Command::SetSetting(SetSetting { name: "a".into(), value: "1".into() });
    assert_eq!(command.to_bytes(), [1, 0x6a, 6, 0x0a, 1, b'a', 0x12, 1, b'1']);
}

#[test]
fn damaged_and_newer_commands_are_refused() {
    for bytes in [&[][..], &[2, 0x32, 0], &[1], &[1, 0xff, 0xff], &[1, 0xfa, 0x3f, 0]] {
        assert_eq!(Command::from_bytes(bytes), Err(CommandError::Unreadable), "{bytes:?}");
    }
}
