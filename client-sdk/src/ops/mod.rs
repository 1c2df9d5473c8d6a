//! The calls on paths, by kind.

mod batch;
mod dir;
mod directory;
mod metadata;
mod names;
mod tree;
mod whole;
mod xattr;

pub use dir::Dir;
pub use directory::{ReadDir, ReadDirOptions};
pub(crate) use metadata::Changes;
