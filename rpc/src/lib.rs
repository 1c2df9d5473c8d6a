//! Transport of Pando: servers, channels, multiplexed streams and clocks behind small traits
