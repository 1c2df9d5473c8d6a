//! The `pando-osd` daemon.
fn main() {}
