//! Open files: [`File`] with position and buffers on top of [`OpenFile`], which
//! knows where the bytes are.

mod data;
mod io;
mod objects;
mod open;

pub(crate) use data::OpenFile;
pub use io::File;
pub(crate) use objects::{check_placement, read_objects};
pub(crate) use open::FILE_MODE;
pub use open::OpenOptions;
