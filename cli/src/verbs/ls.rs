//! `pando ls`

use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pando_client::{Client, DirEntry, Metadata, ReadDirOptions};
use pando_proto::Errno;
use serde_json::{Map, Value};

use crate::args::LsArgs;
use crate::failure::{Failure, Failures};
use crate::output;
use crate::session::{Session, finish};

struct Lister<'a> {
    client: &'a Client,
    json: bool,
    long: bool,
}

pub async fn run(session: &Session, args: LsArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let lister = Lister { client: &client, json: session.json, long: args.long };
    let outcome = lister.all(&args).await;
    finish(client, outcome).await
}

impl Lister<'_> {
    async fn all(&self, args: &LsArgs) -> Result<(), Failure> {
        let mut failures = Failures::default();
        for (number, path) in args.paths.iter().enumerate() {
            if args.paths.len() > 1 && !self.json && !args.directory {
                let gap = if number > 0 { "\n" } else { "" };
                output::line(format!("{gap}{}:", output::shown(path.as_os_str().as_bytes())))?;
            }
            failures.note(self.one(path, args.directory).await)?;
        }
        failures.finish()
    }

    async fn one(&self, path: &Path, itself: bool) -> Result<(), Failure> {
        let found = self.client.symlink_metadata(path).await?;
        if itself || !found.is_dir() {
            return self.print(path.as_os_str().as_bytes(), path.to_owned(), &found).await;
        }
        let options = ReadDirOptions { metadata: self.long, ..ReadDirOptions::default() };
        let mut listing = self.client.read_dir_with(path, options).await?;
        let mut closed = false;
        while let Some(entry) = listing.next_entry().await? {
            closed |= self.long && entry.metadata().is_none();
            self.entry(path, &entry).await?;
        }
        if closed {
            let error = pando_proto::Error::posix(Errno::EACCES).at(path.as_os_str().as_bytes());
            return Err(Failure::from(error).saying("only names are shown: no permission to search the directory"));
        }
        Ok(())
    }

    async fn entry(&self, dir: &Path, entry: &DirEntry) -> Result<(), Failure> {
        match entry.metadata() {
            Some(metadata) => self.print(entry.name(), dir.join(entry.file_name()), metadata).await,
            None if self.json => {
                let mut object = Map::new();
                output::put_name(&mut object, "name", entry.name());
                object.insert("kind".into(), output::kind_word(entry.kind()).into());
                object.insert("ino".into(), Value::from(entry.ino()));
                output::object(object)
            }
            None if self.long => output::line(long_line(
                &output::mode_unknown(entry.kind()),
                [&"?", &"?", &"?", &"?"],
                "?",
                &output::shown(entry.name()),
            )),
            None => output::line(output::shown(entry.name())),
        }
    }

    async fn print(&self, name: &[u8], path: PathBuf, metadata: &Metadata) -> Result<(), Failure> {
        let target = match metadata.is_symlink() && (self.long || self.json) {
            true => self.client.read_link(&path).await.ok(),
            false => None,
        };
        let target = target.as_ref().map(|target| target.as_os_str().as_bytes());
        if self.json {
            return output::object(output::file_object(name, metadata, target));
        }
        let name = output::shown(name);
        if !self.long {
            return output::line(name);
        }
        let arrow = target.map(|target| format!(" -> {}", output::shown(target))).unwrap_or_default();
        output::line(long_line(
            &output::mode_text(metadata.kind(), metadata.mode()),
            [&metadata.nlink(), &metadata.uid(), &metadata.gid(), &metadata.len()],
            &output::time_text(metadata.as_proto().mtime),
            &format!("{name}{arrow}"),
        ))
    }
}

/// A line of `ls -l`: mode; links, owner, group, size; time; name.
fn long_line(mode: &str, numbers: [&dyn Display; 4], time: &str, name: &str) -> String {
    let [links, owner, group, size] = numbers.map(ToString::to_string);
    format!("{mode} {links:>3} {owner:>5} {group:>5} {size:>12} {time:>19} {name}")
}
