//! The integration tests of loadgen.

mod faulty;

mod compare;
mod content;
mod crash;
mod interrupted;
mod pando;
mod parse;
mod ranks;
mod replay;
mod usage;
