//! A cable between two hosts that injects link faults: forwards TCP and UDP, with cuts, delay and loss.
//!
//! Kernels can do this by themselves (netem), but not every kernel has it; the cable needs no kernel and no root. What a
//! test sees through it is what a real network shows: connections that are reset or closed, datagrams that never come, a NAT
//! that has forgotten its clients. Memory is bounded: what does not fit is held back (TCP) or dropped (UDP), as by a router.

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

/// A cable between the diallers of [`address`](Self::address) and a target. Removed when dropped.
pub struct Cable {
    address: SocketAddr,
    state: Arc<watch::Sender<CableState>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Cable {
    /// Takes TCP connections at `listen`, each with one of its own to `target`.
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

    /// Takes datagrams at `listen`; each client has a port of its own towards `target`, and another one after each cut.
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

    /// Where it is dialled.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it by hand until it is restored. The plan's own cuts restore it as well.
    pub fn cut(&self) {
        self.state.send_modify(CableState::cut);
    }

    /// Restores it.
    pub fn restore(&self) {
        self.state.send_modify(CableState::restore);
    }

    /// How often it was cut.
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
            .field("sky", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
