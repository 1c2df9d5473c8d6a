//! Clusters of several ranks: started, watched, loaded, moved about and killed.
//!
//! | file | what |
//! |---|---|
//! | `cluster` | a cluster of this process, its ranks as threads or as processes |
//! | `process`, `quota` | a rank as a process, and what keeps it to a share of a CPU |
//! | `tree` | splits, merges and moves of subtrees |
//! | `observe` | the load of each rank over time, and who became the owner of what |
//! | `chaos` | moves and kills while something else runs |
//! | `rotate` | trees that cannot be dealt evenly take turns |
//! | `run` | a replay with all that |
//! | `usage` | how much of the machine a measurement took |
//! | `work` | a steady load that remembers when it had to wait |
//! | `html` | reports as pages |
//! | `migrate`, `failover`, `rename`, `multi_mds` | experiments |

pub mod chaos;
pub mod cluster;
pub mod failover;
pub mod html;
pub mod migrate;
pub mod multi_mds;
pub mod observe;
mod process;
mod quota;
pub mod rename;
mod rotate;
pub mod run;
pub mod tree;
mod usage;
mod work;
