//! Pando's wire and disk messages, its id types and its errors.
//!
//! The generated modules mirror the proto packages: [`mon`], [`mds`], [`osd`].
//! [`ids`] holds the newtypes that the rest of Pando uses, [`error`] the one
//! error type that crosses process borders.

#![forbid(unsafe_code)]

pub mod error;
pub mod ids;
mod name;

pub use error::{Errno, Error, Reason};
pub use ids::{ClientId, Epoch, Ino, OsdId, PgId, PoolId, Rank, RequestId, ShardId, SubtreeId};
pub use name::{MAX_NAME_BYTES, is_file_name};

/// Package `pando.mon.v1`.
#[allow(missing_docs, clippy::all)]
pub mod mon {
    tonic::include_proto!("pando.mon.v1");
}

/// Package `pando.mds.v1`.
#[allow(missing_docs, clippy::all)]
pub mod mds {
    tonic::include_proto!("pando.mds.v1");
}

/// Package `pando.osd.v1`.
#[allow(missing_docs, clippy::all)]
pub mod osd {
    tonic::include_proto!("pando.osd.v1");
}

/// The encoded `FileDescriptorSet` of all packages, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pando.bin"));

/// Largest gRPC message any Pando server accepts, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Longest path in a request, in bytes (PATH_MAX without the NUL).
pub const MAX_PATH_BYTES: usize = 4095;

#[cfg(test)]
mod readme;
