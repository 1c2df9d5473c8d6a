//! `pando stat`

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pando_client::Client;

use crate::args::StatArgs;
use crate::failure::{Failure, Failures};
use crate::output::{self, time_text};
use crate::session::{Session, finish};

pub async fn run(session: &Session, args: StatArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = all(&client, &args, session.json).await;
    finish(client, outcome).await
}

async fn all(client: &Client, args: &StatArgs, json: bool) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for path in &args.paths {
        failures.note(one(client, path, args.follow, json).await)?;
    }
    failures.finish()
}

async fn one(client: &Client, path: &Path, follow: bool, json: bool) -> Result<(), Failure> {
    let found = if follow { client.metadata(path).await? } else { client.symlink_metadata(path).await? };
    let target = if found.is_symlink() { Some(client.read_link(path).await?) } else { None };
    let target = target.as_ref().map(|target| target.as_os_str().as_bytes());
    let name = path.as_os_str().as_bytes();
    if json {
        return output::object(output::file_object(name, &found, target));
    }
    let attr = found.as_proto();
    let arrow = target.map(|target| format!(" -> {}", output::shown(target))).unwrap_or_default();
    output::line(format!("{}{arrow}", output::shown(name)))?;
    let mut rows = vec![
        ("kind", output::kind_word(found.kind()).to_owned()),
        ("size", format!("{} ({})", attr.size, output::bytes_text(attr.size))),
        ("mode", format!("{:04o} {}", attr.mode, output::mode_text(found.kind(), attr.mode))),
        ("owner", format!("{}:{}", attr.uid, attr.gid)),
        ("links", attr.nlink.to_string()),
        ("ino", attr.ino.to_string()),
        ("accessed", time_text(attr.atime)),
        ("modified", time_text(attr.mtime)),
        ("changed", time_text(attr.ctime)),
        ("made", time_text(attr.birth_time)),
    ];
    if found.is_dir() {
        rows.insert(2, ("entries", attr.entries.to_string()));
    }
    rows.iter().try_for_each(|(word, value)| output::line(format!("  {word:<9} {value}")))
}
