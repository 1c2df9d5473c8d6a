//! The object storage daemon: placement groups of records and objects on a
//! pluggable [`engine`], replicated by primary copy.

#![forbid(unsafe_code)]

pub mod engine;
