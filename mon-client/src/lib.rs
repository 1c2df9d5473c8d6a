//! Talking to the mons.
