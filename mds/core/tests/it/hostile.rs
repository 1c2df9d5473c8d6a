//! Nothing from outside brings the namespace down.

use bytes::Bytes;
use pando_mds_core::Namespace;
use pando_mds_core::api::{Context, Fetch, Fetched, Outcome};
use pando_mds_core::records::Key;
use pando_proto::mds::operation::Op;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Ino, Reason};
use proptest::prelude::*;
use prost::Message as _;

use crate::rig::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes that happen to decode as operations, and operations with strange numbers.
    #[test]
    fn random_operations_are_answered(
        number in 0u8..26,
        base in prop_oneof![Just(0u64), Just(1), Just(2), any::<u64>()],
        path in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'f'), Just(0u8), any::<u8>()], 0..12),
        a in prop_oneof![0u64..4, any::<u64>()],
        b in any::<u64>(),
        data in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut rig = Rig::new(config());
        rig.write("f", b"x");
        rig.ok(mkdir("d"));
        rig.open("f", 1, R | W);
        let target = Some(Target { base, path: path.into() });
        let (flags, data) = (a as u32, Bytes::from(data));
        let report = Some(SizeReport { size: a, truncate_seq: b, mtime: b as i64 });
        let op = match number {
            0 => Op::Stat(StatRequest { target, ..Default::default() }),
            1 => Op::SetAttr(SetAttrRequest { target, size: Some(b), mode: Some(flags), uid: Some(flags), handle: a, ..Default::default() }),
            2 => Op::Access(AccessRequest { target, mask: flags, ..Default::default() }),
            3 => Op::Open(OpenRequest { target, handle: b, flags, mode: flags, size_hint: b, ..Default::default() }),
            4 => Op::Close(CloseRequest { handle: a, report, ..Default::default() }),
            5 => Op::ReadFile(ReadFileRequest { target, ..Default::default() }),
            6 => Op::WriteFile(WriteFileRequest { target, flags, data, mode: flags, ..Default::default() }),
            7 => Op::Read(ReadRequest { handle: a, offset: b, length: b, ..Default::default() }),
            8 => Op::Write(WriteRequest { handle: a, offset: b, data, append: false, ..Default::default() }),
            9 => Op::GrantSize(GrantSizeRequest { handle: a, size: b, ..Default::default() }),
            10 => Op::ReportSize(ReportSizeRequest { handle: a, report, ..Default::default() }),
            11 => Op::Mkdir(MkdirRequest { target, mode: flags, ..Default::default() }),
            12 => Op::Unlink(UnlinkRequest { target, ..Default::default() }),
            13 => Op::Rmdir(RmdirRequest { target, ..Default::default() }),
            14 => Op::Rename(RenameRequest { from: at("f"), to: target, mode: flags as i32, ..Default::default() }),
            15 => Op::Link(LinkRequest { existing: at("f"), link: target, ..Default::default() }),
            16 => Op::Symlink(SymlinkRequest { target, link_target: data, ..Default::default() }),
            17 => Op::Readlink(ReadlinkRequest { target, ..Default::default() }),
            18 => Op::Readdir(ReaddirRequest { target, handle: a, after: data, limit: flags, ..Default::default() }),
            19 => Op::GetXattr(GetXattrRequest { target, name: data, ..Default::default() }),
            20 => Op::SetXattr(SetXattrRequest { target, name: data.clone(), value: data, mode: flags as i32, ..Default::default() }),
            21 => Op::RemoveXattr(RemoveXattrRequest { target, name: data, ..Default::default() }),
            22 => Op::Reclaim(ReclaimRequest { handles: vec![ReclaimedHandle { handle: a, ino: b, flags }] }),
            23 => Op::SetXattr(SetXattrRequest { target: None, ..Default::default() }),
            24 => Op::Rename(RenameRequest::default()),
            _ => Op::Symlink(SymlinkRequest::default()),
        };
        let _ = rig.run(op);
        rig.flush();
        rig.stat("d");
    }

    /// Records of any bytes are refused or installed, and operations over them answered.
    #[test]
    fn random_records_are_refused_or_read(record in prop::collection::vec(any::<u8>(), 0..60), good in any::<bool>()) {
        let mut record = record;
        if good {
            record.insert(0, 1);
        }
        let record = Bytes::from(record);
        let mut ns = Namespace::new(config());
        let dir = Ino::ROOT;
        for fetched in [
            Fetched::Record(Key::Inode(dir), Some(record.clone())),
            Fetched::Record(Key::Dentry(dir, "f".into()), Some(record.clone())),
            Fetched::Record(Key::Body(dir), Some(record.clone())),
            Fetched::Dentries { dir, after: record.clone(), entries: vec![(record.clone(), record.clone())], end: true },
            Fetched::BackLinks { ino: dir, after: record.clone(), links: vec![record.clone()], end: false },
        ] {
            let token = ns.begin_fetch(&Fetch::Record(Key::Inode(dir)));
            let _ = ns.install(token, fetched);
        }
        let context = Context { now: 1, client: ClientId(1), ..Context::default() };
        for op in [stat("f/x"), mkdir("f"), write_file("f", b"x"), resize("f", 9), readdir("", "", 0), unlink("f"), mv("f", "g")] {
            let _ = ns.apply(&Operation { op: Some(op) }, &context);
        }
    }
}

#[test]
fn an_empty_operation_is_refused() {
    let mut ns = Namespace::new(config());
    let Outcome::Done(done) =
        ns.apply(&Operation { op: None }, &Context { now: 1, client: ClientId(1), ..Context::default() })
    else {
        panic!()
    };
    assert_eq!(done.result.unwrap_err().reason, Reason::InvalidRequest);
}

#[test]
fn a_record_of_a_newer_format_names_itself() {
    let mut ns = Namespace::new(config());
    let token = ns.begin_fetch(&Fetch::Record(Key::Inode(Ino::ROOT)));
    let fetched = Fetched::Record(Key::Inode(Ino::ROOT), Some(Bytes::from_static(b"\x02abc")));
    assert_eq!(ns.install(token, fetched).unwrap_err().reason, Reason::NewerFormat);
    let token = ns.begin_fetch(&Fetch::Record(Key::Inode(Ino::ROOT)));
    let fetched = Fetched::Record(Key::Inode(Ino::ROOT), Some(Bytes::from_static(b"\x01\xff\xff")));
    assert_eq!(ns.install(token, fetched).unwrap_err().reason, Reason::Corrupt);
}

/// I10: records that contradict each other are an error.
#[test]
fn contradicting_records_are_errors() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"body").ino);
    let gone = Ino(rig.write("gone", b"").ino);
    rig.flush();
    rig.store.remove(&Key::Inode(gone).encode());
    let mut short = vec![1];
    BodyRecord { inline_version: 0, data: Bytes::from_static(b"bo") }.encode(&mut short).unwrap();
    rig.store.insert(Key::Body(ino).encode(), short.into());
    rig.ns = Namespace::new(config());
    let error = rig.run(read_file("f")).unwrap_err();
    assert_eq!((error.reason, error.errno), (Reason::Corrupt, Errno::EIO));
    rig.store.remove(&Key::Body(ino).encode());
    rig.ns = Namespace::new(config());
    assert_eq!(rig.run(read_file("f")).unwrap_err().reason, Reason::Corrupt);
    assert_eq!(rig.run(stat("gone")).unwrap_err().reason, Reason::Corrupt);
}

/// Directories that are each other's parents (which no rename makes) end the walk upwards.
#[test]
fn a_cycle_on_disk_does_not_hang() {
    let mut rig = Rig::new(config());
    for dir in ["a", "b", "a/x", "b/y"] {
        rig.ok(mkdir(dir));
    }
    let (a, b) = (Ino(rig.stat("a").ino), Ino(rig.stat("b").ino));
    rig.flush();
    for (ino, parent) in [(a, b), (b, a)] {
        let record = InodeRecord { parent: parent.0, ..rig.inode(ino).unwrap() };
        let mut value = vec![1];
        record.encode(&mut value).unwrap();
        rig.store.insert(Key::Inode(ino).encode(), value.into());
    }
    rig.ns = Namespace::new(config());
    assert_eq!(rig.run(mv("a/x", "b/x")).unwrap_err().reason, Reason::Corrupt);
}
