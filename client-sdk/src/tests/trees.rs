//! Walks of trees in which somebody else renames meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pando_proto::mds::{
    Attr, DirEntry, FileKind, ReaddirResponse, RmdirResponse, StatResponse, Target, UnlinkResponse, operation::Op,
    operation_result::Result as Answer,
};
use pando_proto::{Errno, Error as ProtoError};

use super::fake::{Act, Fake, Seen};
use super::op;

const ROOT: u64 = 1;

#[derive(Clone)]
enum Node {
    File,
    Dir(BTreeMap<String, u64>),
    Symlink(&'static str),
}

/// A file system as far as these tests need one.
#[derive(Clone)]
struct Model {
    nodes: BTreeMap<u64, Node>,
}

impl Model {
    fn new() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::Dir(BTreeMap::new()))]) }
    }

    fn make(&mut self, path: &str, node: Node) {
        let ino = self.nodes.keys().last().unwrap() + 1;
        self.nodes.insert(ino, node);
        self.put(path, Some(ino));
    }

    fn put(&mut self, path: &str, ino: Option<u64>) {
        let (dir, name) = self.parent(ROOT, path).unwrap();
        let Some(Node::Dir(entries)) = self.nodes.get_mut(&dir) else { panic!("{path}") };
        match ino {
            Some(ino) => entries.insert(name, ino),
            None => entries.remove(&name),
        };
    }

    fn rename(&mut self, from: &str, to: &str) {
        let ino = self.find(ROOT, from, false).unwrap();
        self.put(from, None);
        self.put(to, Some(ino));
    }

    /// All that is there, by path.
    fn all(&self) -> Vec<String> {
        let (mut found, mut stack) = (Vec::new(), vec![(String::new(), ROOT)]);
        while let Some((path, ino)) = stack.pop() {
            if let Node::Dir(entries) = &self.nodes[&ino] {
                stack.extend(entries.iter().map(|(name, ino)| (format!("{path}/{name}"), *ino)));
            }
            found.push(path);
        }
        found.sort();
        found.split_off(1)
    }

    fn entries(&self, dir: u64) -> Result<&BTreeMap<String, u64>, Errno> {
        match self.nodes.get(&dir) {
            Some(Node::Dir(entries)) => Ok(entries),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn find(&self, base: u64, path: &str, follow: bool) -> Result<u64, Errno> {
        let (mut here, mut names) = (base, path.split('/').filter(|name| !name.is_empty()).peekable());
        while let Some(name) = names.next() {
            let next = *self.entries(here)?.get(name).ok_or(Errno::ENOENT)?;
            here = match self.nodes.get(&next) {
                Some(Node::Symlink(text)) if follow || names.peek().is_some() => self.find(ROOT, text, true)?,
                _ => next,
            };
        }
        Ok(here)
    }

    fn parent(&self, base: u64, path: &str) -> Result<(u64, String), Errno> {
        let path = path.trim_end_matches('/');
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(base, dir, true)?, name.to_owned()))
    }

    fn remove(&mut self, target: &Target, directory: bool) -> Result<(), Errno> {
        let (dir, name) = self.parent(target.base.max(ROOT), std::str::from_utf8(&target.path).unwrap())?;
        let ino = *self.entries(dir)?.get(&name).ok_or(Errno::ENOENT)?;
        match &self.nodes[&ino] {
            Node::Dir(_) if !directory => return Err(Errno::EISDIR),
            Node::Dir(entries) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            Node::File | Node::Symlink(_) if directory => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.nodes.remove(&ino);
        let Some(Node::Dir(entries)) = self.nodes.get_mut(&dir) else { panic!() };
        entries.remove(&name);
        Ok(())
    }

    fn kind(&self, ino: u64) -> FileKind {
        match &self.nodes[&ino] {
            Node::File => FileKind::File,
            Node::Dir(_) => FileKind::Directory,
            Node::Symlink(_) => FileKind::Symlink,
        }
    }

    fn run(&mut self, op: &Op) -> Result<Answer, Errno> {
        let find = |target: &Option<Target>, follow| {
            let target = target.as_ref().unwrap();
            self.find(target.base.max(ROOT), std::str::from_utf8(&target.path).unwrap(), follow)
        };
        match op {
            Op::Stat(request) => {
                let ino = find(&request.target, request.follow)?;
                let attr = Attr { ino, kind: self.kind(ino).into(), ..Attr::default() };
                Ok(Answer::Stat(StatResponse { attr: Some(attr), placement: None }))
            }
            Op::Readdir(request) => {
                let entries = self.entries(find(&request.target, true)?)?.iter().map(|(name, ino)| DirEntry {
                    name: name.clone().into(),
                    ino: *ino,
                    kind: self.kind(*ino).into(),
                    ..DirEntry::default()
                });
                Ok(Answer::Readdir(ReaddirResponse { entries: entries.collect(), end: true }))
            }
            Op::Unlink(request) => {
                self.remove(request.target.as_ref().unwrap(), false).map(|()| Answer::Unlink(UnlinkResponse {}))
            }
            Op::Rmdir(request) => {
                self.remove(request.target.as_ref().unwrap(), true).map(|()| Answer::Rmdir(RmdirResponse {}))
            }
            other => panic!("not in these tests: {other:?}"),
        }
    }
}

/// A rank with these files; after each operation somebody else may act.
async fn rank(model: Model, mut other: impl FnMut(&Seen, &mut Model) + Send + 'static) -> (Fake, Arc<Mutex<Model>>) {
    let model = Arc::new(Mutex::new(model));
    let shared = Arc::clone(&model);
    let fake = Fake::start(move |seen| {
        let mut model = shared.lock().unwrap();
        let answer = model.run(op(seen));
        other(seen, &mut model);
        vec![Act::Answer(answer.unwrap_or_else(|errno| Answer::Error(ProtoError::posix(errno).to_rpc_status())))]
    })
    .await;
    (fake, model)
}

/// `/tree` with a file and a directory, and something outside of it.
fn tree() -> Model {
    let mut model = Model::new();
    for dir in ["tree", "tree/sub", "tree/sub/deep", "kept", "kept/deep"] {
        model.make(dir, Node::Dir(BTreeMap::new()));
    }
    for file in ["tree/file", "tree/sub/file", "kept/file", "kept/deep/file"] {
        model.make(file, Node::File);
    }
    model
}

const KEPT: [&str; 4] = ["/kept", "/kept/deep", "/kept/deep/file", "/kept/file"];

/// As CVE-2022-21658 in the standard library. Whenever it is done: before each of the requests.
#[tokio::test]
async fn a_removal_is_not_led_out_of_its_tree_by_a_symlink_that_takes_the_place_of_a_directory() {
    for moment in 0.. {
        let mut count = 0;
        let (fake, model) = rank(tree(), move |_, model| {
            if count == moment
                && model.find(ROOT, "tree/sub", false).is_ok_and(|ino| model.kind(ino) == FileKind::Directory)
            {
                model.rename("tree/sub", "moved");
                model.make("tree/sub", Node::Symlink("/kept"));
            }
            count += 1;
        })
        .await;
        let (client, _map) = fake.client();
        client.remove_dir_all("/tree").await.unwrap();
        let left: Vec<_> = model.lock().unwrap().all();
        let outside: Vec<_> = left.iter().filter(|path| !path.starts_with("/moved")).collect();
        assert_eq!(outside, KEPT, "at {moment}");
        if moment > fake.seen().len() {
            break;
        }
    }
}

#[tokio::test]
async fn what_is_moved_out_of_a_tree_before_its_turn_is_left_alone() {
    let mut listed = false;
    let (fake, model) = rank(tree(), move |seen, model| {
        if matches!(op(seen), Op::Readdir(_)) && !std::mem::replace(&mut listed, true) {
            model.rename("tree/sub", "moved");
        }
    })
    .await;
    let (client, _map) = fake.client();
    client.remove_dir_all("/tree").await.unwrap();
    let expected = [&KEPT[..], &["/moved", "/moved/deep", "/moved/file"]].concat();
    assert_eq!(model.lock().unwrap().all(), expected);
}

#[tokio::test]
async fn a_directory_in_the_place_of_a_file_is_removed_too() {
    let mut listed = false;
    let (fake, model) = rank(tree(), move |seen, model| {
        if matches!(op(seen), Op::Readdir(_)) && !std::mem::replace(&mut listed, true) {
            model.put("tree/file", None);
            model.make("tree/file", Node::Dir(BTreeMap::new()));
            model.make("tree/file/more", Node::File);
        }
    })
    .await;
    let (client, _map) = fake.client();
    client.remove_dir_all("/tree").await.unwrap();
    assert_eq!(model.lock().unwrap().all(), KEPT);
}

#[tokio::test]
async fn what_is_no_directory_is_not_removed_as_one() {
    let mut model = tree();
    model.make("link", Node::Symlink("/kept"));
    let before = model.all();
    let (fake, model) = rank(model, |_, _| {}).await;
    let (client, _map) = fake.client();
    let refused = [
        ("/link", Errno::ENOTDIR),
        ("/link/", Errno::ENOTDIR),
        ("/kept/file", Errno::ENOTDIR),
        ("/none", Errno::ENOENT),
        ("/none/below", Errno::ENOENT),
        ("/", Errno::EBUSY),
        ("/kept/.", Errno::EINVAL),
        ("/kept/deep/..", Errno::ENOTEMPTY),
    ];
    for (path, errno) in refused {
        let error = client.remove_dir_all(path).await.unwrap_err();
        let named = path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path);
        assert_eq!((error.errno(), error.path()), (errno, Some(named.as_bytes())), "{path}");
    }
    assert_eq!(model.lock().unwrap().all(), before);
}
