//! The state machine of a placement group: single steps, and whole groups under faults.

mod disk;
mod random;
mod steps;
mod world;
