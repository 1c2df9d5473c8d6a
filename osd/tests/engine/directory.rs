//! Data directories that are not what they should be.

use std::fs;

use pando_osd::engine::{self, Directory, DirectoryError, EngineError, EngineKind, EngineOptions};

use crate::store::{PG, options, put, transaction};

fn open(dir: &std::path::Path, kind: EngineKind) -> Result<Directory, DirectoryError> {
    Directory::open(dir, kind, None)
}

#[test]
fn a_directory_keeps_its_identity_and_its_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/on/the/way");
    let directory = open(&path, EngineKind::Fjall).unwrap();
    let uuid = directory.uuid();
    assert_eq!(directory.cluster(), None);
    directory.set_cluster([7; 16]).unwrap();
    directory.set_cluster([7; 16]).unwrap();
    assert!(matches!(directory.set_cluster([8; 16]), Err(DirectoryError::OtherCluster { .. })));
    drop(directory);
    let directory = Directory::open(&path, EngineKind::Fjall, Some([7; 16])).unwrap();
    assert_eq!((directory.uuid(), directory.cluster()), (uuid, Some([7; 16])));
    drop(directory);
    let error = Directory::open(&path, EngineKind::Fjall, Some([8; 16])).unwrap_err();
    assert!(matches!(error, DirectoryError::OtherCluster { .. }), "{error}");
    assert!(error.to_string().contains("07070707070707070707070707070707"), "{error}");
}

#[test]
fn a_directory_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), EngineKind::File).unwrap();
    assert!(matches!(open(dir.path(), EngineKind::File), Err(DirectoryError::Locked { .. })));
    drop(first);
    open(dir.path(), EngineKind::File).unwrap();
}

#[test]
fn another_engine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), EngineKind::File).unwrap());
    let error = open(dir.path(), EngineKind::Fjall).unwrap_err();
    assert!(matches!(error, DirectoryError::OtherEngine { .. }));
    assert!(error.to_string().contains("start with `file`"), "{error}");
}

#[test]
fn a_newer_format_is_refused_whatever_else_it_says() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pando-osd.toml"), "format = 2\nengine = [1]\n").unwrap();
    let error = open(dir.path(), EngineKind::Fjall).unwrap_err();
    assert!(matches!(error, DirectoryError::NewerFormat { .. }), "{error}");
}

#[test]
fn a_damaged_superblock_is_named() {
    let uuid = "uuid = '00000000-0000-0000-0000-000000000000'";
    for text in ["", "format = 1", "\0\u{1}", &format!("format = 1\nengine = 'fjall'\n{uuid}x"), &"#".repeat(100_000)] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pando-osd.toml"), text).unwrap();
        let error = open(dir.path(), EngineKind::Fjall).unwrap_err();
        assert!(matches!(error, DirectoryError::Damaged { .. }), "{error}");
    }
}

#[test]
fn what_is_not_an_osds_directory_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    assert!(matches!(open(&file, EngineKind::Fjall), Err(DirectoryError::NotADirectory { .. })));
    assert!(matches!(open(&file.join("below"), EngineKind::Fjall), Err(DirectoryError::NotADirectory { .. })));
    assert!(matches!(open(dir.path(), EngineKind::Fjall), Err(DirectoryError::NotOurs { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_start_that_was_cut_short_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pando-osd.lock"), "").unwrap();
    fs::write(dir.path().join("pando-osd.toml.new"), "form").unwrap();
    open(dir.path(), EngineKind::Fjall).unwrap();
}

#[test]
fn engines_are_opened_by_name() {
    for kind in [EngineKind::Memory, EngineKind::Fjall, EngineKind::File] {
        assert_eq!(kind.to_string().parse::<EngineKind>().unwrap(), kind);
        let dir = tempfile::tempdir().unwrap();
        let (engine, directory) = engine::open(kind, dir.path(), &options()).unwrap();
        engine.commit(&[transaction(vec![put(b"k", b"v")])]).unwrap();
        assert_eq!(engine.pgs().unwrap(), [PG]);
        drop(directory);
    }
    assert!(matches!("ext4".parse::<EngineKind>(), Err(EngineError::Invalid(_))));
}

#[test]
fn the_lock_outlives_no_one_who_could_write() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, directory) = engine::open(EngineKind::Fjall, dir.path(), &options()).unwrap();
    let again = engine::open(EngineKind::Fjall, dir.path(), &EngineOptions::default());
    assert!(matches!(again, Err(EngineError::Directory(DirectoryError::Locked { .. }))));
    // The directory let go too early: the engine's own lock still holds.
    drop(directory);
    let again = engine::open(EngineKind::Fjall, dir.path(), &EngineOptions::default());
    assert!(matches!(again, Err(EngineError::Directory(DirectoryError::Locked { .. }))));
    drop(engine);
    engine::open(EngineKind::Fjall, dir.path(), &EngineOptions::default()).unwrap();
}
