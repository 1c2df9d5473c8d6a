//! Transport shared by every part of Pando: sockets and clocks behind small
//! traits ([`net::Net`], [`clock::Clock`]), servers and channels with one set of
//! limits, and requests multiplexed over streams ([`pipe`], [`queue`]).

#![forbid(unsafe_code)]

pub mod channel;
pub mod clock;
pub mod net;
pub mod pipe;
pub mod queue;
pub mod server;

pub use channel::channel;
pub use clock::{Clock, Lease, SystemClock, TokioClock};
pub use net::{BoxIo, Listener, Net, TcpNet};
pub use server::{Shutdown, bind, serve, standard_routes};
