//! `pando df`. JSON: `total_bytes`, `used_bytes`, `free_bytes`, `inline_limit`.

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{self, bytes_text};
use crate::session::{Session, finish};

pub async fn run(session: &Session) -> Result<(), Failure> {
    let client = session.client().await?;
    let outcome = print(session, client.statfs().await);
    finish(client, outcome).await
}

fn print(session: &Session, stats: pando_client::Result<pando_client::FsStats>) -> Result<(), Failure> {
    let stats = stats?;
    if session.json {
        let fields = json!({
            "total_bytes": stats.total_bytes,
            "used_bytes": stats.used_bytes,
            "free_bytes": stats.free_bytes,
            "inline_limit": stats.inline_limit,
        });
        return output::line(fields.to_string());
    }
    let percent = match stats.total_bytes {
        0 => Value::from("-").to_string(),
        total => format!("{} %", stats.used_bytes.saturating_mul(100) / total),
    };
    let row = [stats.total_bytes, stats.used_bytes, stats.free_bytes].map(bytes_text);
    output::table(&["SIZE", "USED", "FREE", "USE"], &[row.into_iter().chain([percent]).collect()])
}
