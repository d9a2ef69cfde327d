//! A cable between two hosts, with someone who pulls it: forwards TCP and UDP, with cuts, delay and loss.
//!
//! Kernels can do this by themselves (netem), but not every kernel has it; the cable needs no kernel and no root. What a
//! test sees through it is what a real network shows: connections that are reset or closed, datagrams that never come, a NAT
//! that has forgotten its clients. Memory is bounded: what does not fit is held back (TCP) or dropped (UDP), as by a router.

mod tcp;
mod udp;
mod weather;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use weather::{Plan, Sky};

/// A cable that lies between those who dial [`address`](Self::address) and a target. Gone when dropped.
pub struct Cable {
    address: SocketAddr,
    sky: Arc<watch::Sender<Sky>>,
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
        let (sky, seen) = watch::channel(Sky::default());
        let forwarding = tokio::spawn(tcp::forward(listener, target, plan, seen));
        Ok(Self::with(address, sky, plan, forwarding))
    }

    /// Takes datagrams at `listen`; each client has a port of its own towards `target`, and another one after each cut.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn udp(listen: SocketAddr, target: SocketAddr, plan: Plan) -> io::Result<Self> {
        let socket = UdpSocket::bind(listen).await?;
        let address = socket.local_addr()?;
        let (sky, seen) = watch::channel(Sky::default());
        let forwarding = tokio::spawn(udp::forward(socket, target, plan, seen));
        Ok(Self::with(address, sky, plan, forwarding))
    }

    fn with(address: SocketAddr, sky: watch::Sender<Sky>, plan: Plan, forwarding: JoinHandle<()>) -> Self {
        let sky = Arc::new(sky);
        let mut tasks = vec![forwarding];
        if plan.cut_every.is_some() {
            tasks.push(tokio::spawn(weather::follow(plan, Arc::clone(&sky))));
        }
        Self { address, sky, tasks }
    }

    /// Where it is dialled.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts it by hand until it is mended. The plan's own cuts mend it as well.
    pub fn cut(&self) {
        self.sky.send_modify(Sky::cut);
    }

    /// Mends it.
    pub fn mend(&self) {
        self.sky.send_modify(Sky::mend);
    }

    /// How often it was cut.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.sky.borrow().cuts()
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
            .field("sky", &*self.sky.borrow())
            .finish_non_exhaustive()
    }
}
