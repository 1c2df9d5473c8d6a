//! `pando cat`

use std::io::Write as _;
use std::path::Path;

use pando_client::Client;

use crate::args::CatArgs;
use crate::failure::{Failure, Failures};
use crate::session::{Session, finish};

/// Bytes asked for at once.
const CHUNK: usize = 8 << 20;

pub async fn run(session: &Session, args: CatArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = all(&client, &args).await;
    finish(client, outcome).await
}

async fn all(client: &Client, args: &CatArgs) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for path in &args.paths {
        failures.note(to_stdout(client, path).await)?;
    }
    failures.finish()
}

pub async fn to_stdout(client: &Client, path: &Path) -> Result<(), Failure> {
    let at = |error| Failure::from(error).at(path);
    let file = client.open(path).await?;
    let mut offset = 0;
    loop {
        let data = file.read_at(offset, CHUNK).await.map_err(at)?;
        if data.is_empty() {
            break;
        }
        offset += data.len() as u64;
        std::io::stdout().write_all(&data).map_err(|error| Failure::output(&error))?;
    }
    std::io::stdout().flush().map_err(|error| Failure::output(&error))?;
    file.close().await.map_err(at)
}
