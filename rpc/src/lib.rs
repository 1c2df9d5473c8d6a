//! Transport shared by every part of Pando: sockets and clocks behind small
//! traits ([`net::Net`], [`clock::Clock`]), servers and channels with one set of
//! limits, requests multiplexed over streams ([`pipe`], [`queue`]), and data
//! directories that survive a power cut ([`directory`]).

#![forbid(unsafe_code)]

pub mod channel;
pub mod clock;
pub mod directory;
pub mod net;
pub mod pipe;
pub mod queue;
pub mod server;
pub mod signals;

use std::sync::Arc;

pub use channel::channel;
pub use clock::{Clock, Lease, SystemClock, TokioClock};
pub use net::{BoxIo, Listener, Net, TcpNet};
pub use server::{Shutdown, bind, serve, standard_routes};
pub use signals::StopSignals;

/// What a daemon gets from outside: its network, its clocks and the sign to stop.
#[derive(Clone)]
pub struct Env {
    /// Sockets.
    pub net: Arc<dyn Net>,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Asks the daemon to stop.
    pub shutdown: Shutdown,
}

impl Env {
    /// The machine's own network and clocks.
    pub fn system() -> Self {
        Self { net: Arc::new(TcpNet), clock: Arc::new(SystemClock), shutdown: Shutdown::default() }
    }
}
