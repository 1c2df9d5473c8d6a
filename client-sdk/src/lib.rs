//! Client library of the Pando file system
