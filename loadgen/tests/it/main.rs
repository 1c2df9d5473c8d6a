//! The integration tests of loadgen.

mod faulty;

mod compare;
mod content;
mod parse;
mod replay;
