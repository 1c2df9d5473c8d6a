//! `pando subtree ls`. JSON: `id`, `path` (a hint), `root_ino`, `parent` (0 for none), `owner` (a rank), `epoch`.

use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn ls(session: &Session) -> Result<(), Failure> {
    let subtrees = session.admin()?.list_subtrees().await?;
    let mut rows = Vec::new();
    for subtree in subtrees {
        if session.json {
            let mut object = Map::new();
            output::put_name(&mut object, "path", &subtree.path_hint);
            let rest = json!({
                "id": subtree.id,
                "root_ino": subtree.root_ino,
                "parent": subtree.parent,
                "owner": subtree.owner,
                "epoch": subtree.epoch,
            });
            if let Value::Object(rest) = rest {
                object.extend(rest);
            }
            output::object(object)?;
            continue;
        }
        rows.push(vec![
            subtree.id.to_string(),
            format!("mds.{}", subtree.owner),
            subtree.epoch.to_string(),
            output::shown(&subtree.path_hint),
        ]);
    }
    if session.json { Ok(()) } else { output::table(&["SUBTREE", "OWNER", "EPOCH", "PATH"], &rows) }
}
