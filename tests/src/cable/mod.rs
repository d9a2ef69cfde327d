//! A forwarder of TCP and UDP that injects link faults: cuts, delay and loss.
//!
//! Linux can inject such faults with netem, but not every kernel has netem, and netem needs root. The cable needs
//! neither. Peers observe the faults of a real network: connections that are reset or closed, datagrams that never
//! arrive, and a NAT that has lost its mappings. Memory is bounded: excess data is held back (TCP) or dropped (UDP), as
//! by a router.

mod plan;
mod tcp;
mod udp;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use plan::{CableState, Plan};

/// A cable between the diallers of [`address`](Self::address) and a target. Forwarding stops on drop.
pub struct Cable {
    address: SocketAddr,
    state: Arc<watch::Sender<CableState>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Cable {
    /// Accepts TCP connections at `listen`, and opens a connection to `target` for each.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn tcp(listen: SocketAddr, target: SocketAddr, plan: Plan) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let (state, seen) = watch::channel(CableState::default());
        let forwarding = tokio::spawn(tcp::forward(listener, target, plan, seen));
        Ok(Self::with(address, state, plan, forwarding))
    }

    /// Receives datagrams at `listen`. Each client has a separate port towards `target`, and a new port after each cut.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn udp(listen: SocketAddr, target: SocketAddr, plan: Plan) -> io::Result<Self> {
        let socket = UdpSocket::bind(listen).await?;
        let address = socket.local_addr()?;
        let (state, seen) = watch::channel(CableState::default());
        let forwarding = tokio::spawn(udp::forward(socket, target, plan, seen));
        Ok(Self::with(address, state, plan, forwarding))
    }

    fn with(
        address: SocketAddr,
        state: watch::Sender<CableState>,
        plan: Plan,
        forwarding: JoinHandle<()>,
    ) -> Self {
        let state = Arc::new(state);
        let mut tasks = vec![forwarding];
        if plan.cut_every.is_some() {
            tasks.push(tokio::spawn(plan::follow(plan, Arc::clone(&state))));
        }
        Self { address, state, tasks }
    }

    /// Returns the address at which the cable is dialled.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the cable until [`restore`](Self::restore), or until the end of a planned cut.
    pub fn cut(&self) {
        self.state.send_modify(CableState::cut);
    }

    /// Ends a cut.
    pub fn restore(&self) {
        self.state.send_modify(CableState::restore);
    }

    /// Returns the number of cuts so far.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.state.borrow().cuts()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl fmt::Debug for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cable")
            .field("address", &self.address)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
