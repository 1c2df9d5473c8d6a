//! `pando ln`

use crate::args::LnArgs;
use crate::failure::Failure;
use crate::session::{Session, finish};

pub async fn run(session: &Session, args: LnArgs) -> Result<(), Failure> {
    let client = session.client().await?;
    let made = if args.symbolic {
        client.symlink(&args.target, &args.link).await
    } else {
        client.hard_link(&args.target, &args.link).await
    };
    finish(client, made.map_err(Failure::from)).await
}
