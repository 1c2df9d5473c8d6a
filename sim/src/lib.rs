//! Pando's cluster under a simulated network, clock and disk, from a seed
