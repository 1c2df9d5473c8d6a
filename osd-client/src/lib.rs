//! Talking to OSDs.
