//! Namespace of Pando: operations, cache accounting and commit order; without I/O
