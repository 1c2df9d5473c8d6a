//! Names and inodes of two, three and four subtrees in one operation (R15, R17, R18).

use pando_mds_core::Config;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{Errno, SubtreeId};

use crate::forest::Forest;
use crate::model::{Id, ROOT};
use crate::permissions::{by, chmod, chown, user};
use crate::random::check_attr;
use crate::rig::{at, config, link, mkdir, read_file, rename, rmdir, stat, unlink, write_file};

/// A tree in which these directories are subtrees: the first is subtree 2.
fn forest(dirs: &[&str], split: &[&str], config: Config) -> Forest {
    let mut forest = Forest::new(config);
    for dir in dirs {
        forest.run(1, 0, mkdir(dir)).unwrap();
        forest.model.mkdir(0, 0, dir, 0o755).unwrap();
    }
    for dir in split {
        assert!(forest.split(dir, true));
    }
    forest
}

/// The root with a, b, c and d, each a subtree.
fn four() -> Forest {
    forest(&["a", "b", "c", "d"], &["a", "b", "c", "d"], config())
}

fn paths(forest: &Forest, dir: Id, above: &str, found: &mut Vec<(String, Id)>) {
    for (name, id) in &forest.model.node(dir).names {
        let path = format!("{above}{name}");
        paths(forest, *id, &format!("{path}/"), found);
        found.push((path, *id));
    }
}

/// Everything is where the model has it.
fn verify(forest: &mut Forest) {
    let mut found = Vec::new();
    paths(forest, ROOT, "", &mut found);
    for (path, id) in found {
        let Reply::Stat(reply) = forest.run(2, 0, stat(&path)).unwrap() else { panic!("wrong reply") };
        check_attr(&reply.attr.unwrap(), &forest.model, id);
        if forest.model.node(id).kind == FileKind::File {
            let Reply::ReadFile(reply) = forest.run(2, 0, read_file(&path)).unwrap() else { panic!("wrong reply") };
            assert_eq!(reply.body.unwrap(), forest.model.node(id).data, "{path}");
        }
    }
}

/// Runs an operation on the forest, then on the model.
fn both(forest: &mut Forest, op: operation::Op, model: impl FnOnce(&mut Forest) -> Result<(), Errno>) {
    forest.now += 1;
    let text = format!("{op:?}");
    let got = forest.run(1, 0, op).map(|_| ()).map_err(|error| error.errno);
    assert_eq!(got, model(forest), "{text}");
    verify(forest);
}

fn write(forest: &mut Forest, path: &str) {
    both(forest, write_file(path, path.as_bytes()), |forest| {
        let how = (true, false, true);
        forest.model.write_file(forest.now, 0, path, how, path.as_bytes(), 0o644, |_| false).map(|_| ())
    });
}

fn md(forest: &mut Forest, path: &str) {
    both(forest, mkdir(path), |forest| forest.model.mkdir(forest.now, 0, path, 0o755).map(|_| ()));
}

fn rmd(forest: &mut Forest, path: &str) {
    both(forest, rmdir(path), |forest| forest.model.rmdir(forest.now, 0, path));
}

fn ln(forest: &mut Forest, existing: &str, new: &str) {
    both(forest, link(existing, new), |forest| forest.model.link(forest.now, 0, existing, new));
}

fn rm(forest: &mut Forest, path: &str) {
    both(forest, unlink(path), |forest| forest.model.unlink(forest.now, 0, path));
}

fn mv(forest: &mut Forest, from: &str, to: &str, mode: RenameMode) {
    both(forest, rename(from, to, mode), |forest| forest.model.rename(forest.now, 0, from, to, mode));
}

fn home(forest: &mut Forest, path: &str) -> SubtreeId {
    forest.run(1, 0, stat(path)).unwrap();
    forest.client.last
}

const A: SubtreeId = SubtreeId(2);
const B: SubtreeId = SubtreeId(3);

#[test]
fn r15_links_come_and_go_in_other_subtrees() {
    let mut f = four();
    write(&mut f, "a/f");
    for new in ["b/f", "c/f", "d/f", "top", "b/g"] {
        ln(&mut f, "a/f", new);
    }
    // By a remote name, to the home, to a third subtree, and where it is itself.
    ln(&mut f, "b/f", "a/g");
    ln(&mut f, "c/f", "d/g");
    ln(&mut f, "c/f", "c/g");
    ln(&mut f, "c/f", "d/g");
    assert_eq!(home(&mut f, "d/g"), A);
    for gone in ["c/f", "b/g", "top", "a/g", "d/g"] {
        rm(&mut f, gone);
    }
    f.end();
}

#[test]
fn r15_an_inode_follows_its_last_names() {
    let mut f = four();
    write(&mut f, "a/f");
    ln(&mut f, "a/f", "b/f");
    ln(&mut f, "a/f", "c/f");
    let request = OpenRequest {
        target: at("c/f"),
        handle: 1,
        flags: OpenFlag::Read as u32 | OpenFlag::Write as u32,
        ..Default::default()
    };
    f.open_handle(1, 0, request).unwrap();
    f.model.open(f.now, 0, (1, 1), "c/f", (true, true, false, false, false), 0).unwrap();
    rm(&mut f, "a/f");
    assert_eq!(home(&mut f, "c/f"), B, "R15: another name is the primary one");
    // R15: the handle went along.
    let write =
        |handle, ino| operation::Op::Write(WriteRequest { handle, ino, offset: 0, data: "x".into(), append: false });
    f.run_held(1, 1, write).unwrap();
    f.model.write_at(f.now, (1, 1), 0, b"x").unwrap();
    assert_eq!(f.client.handles[&(1, 1)].subtree, B);
    rm(&mut f, "b/f");
    rm(&mut f, "c/f");
    f.run_held(1, 1, write).unwrap();
    f.close(1, 1).unwrap();
    f.end();
}

#[test]
fn r18_a_rename_may_concern_four_subtrees() {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        let mut f = four();
        write(&mut f, "a/f");
        ln(&mut f, "a/f", "b/f");
        write(&mut f, "c/g");
        ln(&mut f, "c/g", "d/g");
        // The homes are a and c, the names in b and d.
        mv(&mut f, "b/f", "d/g", mode);
        mv(&mut f, "d/g", "b/f", mode);
        mv(&mut f, "b/f", "top", mode);
        f.end();
    }
}

#[test]
fn renames_of_files_with_more_names() {
    let mut f = four();
    for (file, others) in [("a/1", ["a/2", "b/1"]), ("b/5", ["c/5", "d/5"])] {
        write(&mut f, file);
        others.iter().for_each(|other| ln(&mut f, file, other));
    }
    // By the primary name: the inode goes along. By others: it stays.
    mv(&mut f, "a/1", "c/1", RenameMode::Replace);
    mv(&mut f, "a/2", "d/2", RenameMode::Replace);
    // To where it is at home, within a subtree where it is not, and back again.
    mv(&mut f, "d/2", "c/2", RenameMode::Replace);
    mv(&mut f, "b/1", "b/11", RenameMode::NoReplace);
    mv(&mut f, "c/1", "b/1", RenameMode::Replace);
    // Two names of one file: nothing happens.
    mv(&mut f, "b/1", "c/2", RenameMode::Replace);
    mv(&mut f, "c/2", "b/1", RenameMode::Exchange);
    mv(&mut f, "c/2", "b/1", RenameMode::NoReplace);
    // Over a primary name whose others are all elsewhere, over a remote one, over one of many here.
    mv(&mut f, "c/2", "b/5", RenameMode::Replace);
    mv(&mut f, "b/11", "d/5", RenameMode::Replace);
    mv(&mut f, "b/1", "c/5", RenameMode::Replace);
    write(&mut f, "a/n");
    mv(&mut f, "a/n", "b/5", RenameMode::Replace);
    f.end();
}

#[test]
fn an_exchange_between_subtrees() {
    let mut f = four();
    ["a/dir", "a/dir/deep", "b/dir"].into_iter().for_each(|dir| md(&mut f, dir));
    for file in ["a/f", "b/f", "a/dir/f", "b/dir/f", "a/g"] {
        write(&mut f, file);
    }
    ln(&mut f, "a/g", "c/g");
    let exchange = |f: &mut Forest, from: &str, to: &str| mv(f, from, to, RenameMode::Exchange);
    exchange(&mut f, "a/f", "b/f");
    exchange(&mut f, "b/f", "c/g");
    exchange(&mut f, "a/dir", "b/f");
    exchange(&mut f, "a/f", "b/dir");
    exchange(&mut f, "b/f", "a/f");
    // Roots within one subtree, with a file and with each other.
    write(&mut f, "top");
    exchange(&mut f, "a", "top");
    exchange(&mut f, "top", "b");
    exchange(&mut f, "b", "top");
    // R17: not with what is below.
    exchange(&mut f, "top", "top/dir");
    exchange(&mut f, "c", "c/g");
    exchange(&mut f, "d", "a/none");
    f.end();
}

#[test]
fn r17_a_directory_is_not_exchanged_with_what_is_below_it() {
    let mut f = forest(&["a", "a/b", "a/b/c", "a/b/c/d", "e"], &["a", "a/b/c"], config());
    for (from, to) in [
        ("a", "a/b"),
        ("a/b", "a"),
        ("a", "a/b/c"),
        ("a/b/c", "a"),
        ("a", "a/b/c/d"),
        ("a/b/c/d", "a"),
        ("a/b", "a/b/c/d"),
        ("a/b/c/d", "a/b"),
    ] {
        both(&mut f, rename(from, to, RenameMode::Exchange), |_| Err(Errno::EINVAL));
    }
    mv(&mut f, "e", "a/b", RenameMode::Exchange);
    mv(&mut f, "e/c/d", "a/b", RenameMode::Exchange);
    f.end();
}

#[test]
fn the_root_of_a_subtree_is_replaced_or_removed_if_it_is_empty() {
    let mut f = forest(&["a", "b", "c", "d", "d/sub", "a/x", "e"], &["a", "b", "c", "d", "d/sub"], config());
    mv(&mut f, "a/x", "d", RenameMode::Replace);
    mv(&mut f, "a/x", "b", RenameMode::Replace);
    assert!(!f.map.contains_key(&B), "R21: it was merged first");
    mv(&mut f, "e", "c", RenameMode::Replace);
    mv(&mut f, "a", "c", RenameMode::Replace);
    write(&mut f, "f");
    mv(&mut f, "f", "d", RenameMode::Replace);
    rmd(&mut f, "d/sub");
    f.end();
}

#[test]
fn links_that_cannot_be_made_in_another_subtree() {
    let mut f = forest(&["a", "b"], &["a", "b"], Config { max_links: 2, ..config() });
    write(&mut f, "a/f");
    write(&mut f, "b/there");
    ln(&mut f, "a/f", "b/there");
    ln(&mut f, "a/f", "b/none/f");
    ln(&mut f, "a/f", "b/f/");
    ln(&mut f, "a/none", "b/f");
    ln(&mut f, "a", "b/f");
    ln(&mut f, "a/f", "b/f");
    for new in ["b/g", "a/g", "g"] {
        both(&mut f, link("b/f", new), |_| Err(Errno::EMLINK));
    }
    f.end();
}

#[test]
fn r15_what_a_link_says_of_its_owner_is_asked_anew() {
    let mut f = four();
    write(&mut f, "a/f");
    ln(&mut f, "a/f", "b/f");
    f.run(1, 0, chmod("b", 0o1777)).unwrap();
    let remove = || by(user(7, &[]), unlink("b/f"));
    assert_eq!(f.run(1, 0, remove()).unwrap_err().errno, Errno::EPERM);
    // At its home, of which the subtree of the link is told nothing.
    f.run(1, 0, chown("a/f", 7, 7)).unwrap();
    f.run(1, 0, remove()).unwrap();
    assert_eq!(f.run(1, 0, stat("b/f")).unwrap_err().errno, Errno::ENOENT);
}
