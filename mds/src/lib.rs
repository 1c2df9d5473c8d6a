//! The metadata server: subtree actors, fetch and commit, sessions, services
