//! The `pando-mds` daemon.
fn main() {}
