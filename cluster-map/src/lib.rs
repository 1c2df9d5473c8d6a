//! The cluster map: commands, epochs and placement, without I/O
