//! Bytes of a file in its objects: many objects at once.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _};
use pando_proto::mds::{DataHome, Placement};
use pando_proto::osd::ObjectId;

use crate::session::Core;
use crate::stripe::{Piece, pieces};
use crate::{Error, Result};

/// Requests to OSDs that one call has under way.
const PARALLEL: usize = 16;

/// Refuses placements that no server sends.
pub(crate) fn check_placement(placement: Option<Placement>) -> Result<Placement> {
    let placement = placement.ok_or_else(|| Error::protocol("no placement"))?;
    match DataHome::try_from(placement.home) {
        Ok(DataHome::Inline) => Ok(placement),
        Ok(DataHome::Objects) if placement.object_size > 0 => Ok(placement),
        _ => Err(Error::protocol("an impossible placement")),
    }
}

fn object(ino: u64, placement: &Placement, piece: Piece) -> ObjectId {
    ObjectId { pool: placement.pool, ino, index: piece.index }
}

/// Reads `[offset, offset + length)`, which must lie below the file's size; holes are zeros.
///
/// Errors: StaleGeneration if the file was cut, moved or purged since the placement was got.
pub(crate) async fn read_objects(
    core: &Arc<Core>,
    ino: u64,
    placement: &Placement,
    offset: u64,
    length: u64,
) -> Result<Bytes> {
    let generation = placement.generation;
    let read = |piece: Piece| async move {
        let data = core.objects.read(object(ino, placement, piece), generation, piece.offset, piece.length).await?;
        Ok::<_, Error>((piece, data))
    };
    let mut cut = pieces(offset, length, placement.object_size);
    let (first, second) = (cut.next(), cut.next());
    let Some(first) = first else { return Ok(Bytes::new()) };
    if second.is_none() {
        let (_, data) = read(first).await?;
        if data.len() as u64 == length {
            return Ok(data);
        }
        return Ok(padded(&data, length).freeze());
    }
    let mut whole = padded(&[], length);
    let mut reading =
        futures_util::stream::iter(pieces(offset, length, placement.object_size).map(read)).buffer_unordered(PARALLEL);
    while let Some((piece, data)) = reading.try_next().await? {
        let at = piece.at as usize;
        // The client of the OSD has checked that `data` is not longer than the piece.
        whole[at..at + data.len()].copy_from_slice(&data);
    }
    Ok(whole.freeze())
}

fn padded(data: &[u8], length: u64) -> BytesMut {
    let mut whole = BytesMut::zeroed(length as usize);
    whole[..data.len()].copy_from_slice(data);
    whole
}

/// Writes `data` at `offset`, durably. The end must lie below the placement's `max_size` (R23).
///
/// Errors: StaleGeneration, as [`read_objects`]; a part may have been written.
pub(crate) async fn write_objects(
    core: &Arc<Core>,
    ino: u64,
    placement: &Placement,
    offset: u64,
    data: &Bytes,
) -> Result<()> {
    let write = |piece: Piece| async move {
        let (from, to) = (piece.at as usize, (piece.at + piece.length) as usize);
        let part = data.slice(from..to);
        core.objects.write(object(ino, placement, piece), placement.generation, piece.offset, part).await?;
        Ok::<_, Error>(())
    };
    let mut writing = futures_util::stream::iter(pieces(offset, data.len() as u64, placement.object_size).map(write))
        .buffer_unordered(PARALLEL);
    while writing.try_next().await?.is_some() {}
    Ok(())
}
