//! The `pando-mon` daemon.
fn main() {}
