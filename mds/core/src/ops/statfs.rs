//! statvfs(3), as far as the namespace knows.

use pando_proto::MAX_NAME_BYTES;
use pando_proto::mds::{StatfsRequest, StatfsResponse};

use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, _request: &StatfsRequest) -> Step<StatfsResponse> {
    let (total_bytes, used_bytes) = view.ns.space;
    Ok(StatfsResponse {
        total_bytes,
        used_bytes,
        free_bytes: total_bytes.saturating_sub(used_bytes),
        max_name_bytes: MAX_NAME_BYTES as u32,
        inline_limit: view.ns.config.inline_limit,
    })
}
