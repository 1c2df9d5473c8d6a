//! One suite over all storage engines, and the tests of what stands on them.

mod commit;
mod corruption;
mod crash;
mod directory;
mod file;
mod model;
mod random;
mod read_pool;
mod semantics;
mod store;
mod torn;
