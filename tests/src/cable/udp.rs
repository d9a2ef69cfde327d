//! The cable for UDP.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::plan::{CableState, Plan};
use crate::random::Random;

/// Largest number of concurrent clients. Datagrams of further clients are dropped.
const CLIENTS: usize = 64;

/// Time after which a silent client loses its port, as in a NAT.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest number of datagrams in flight of one client and direction. Further ones are dropped, as by a router.
const IN_FLIGHT: usize = 4096;

/// Largest datagram, in bytes.
const DATAGRAM: usize = 65_535;

/// Forwards datagrams until the task is aborted.
pub(super) async fn forward(
    socket: UdpSocket,
    target: SocketAddr,
    plan: Plan,
    state: watch::Receiver<CableState>,
) {
    let socket = Arc::new(socket);
    let mut clients: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM];
    let mut seed = plan.seed;
    loop {
        // An error belongs to an earlier datagram.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        while tasks.try_join_next().is_some() {}
        clients.retain(|_, client| !client.is_closed());
        if !clients.contains_key(&from) && clients.len() < CLIENTS {
            let Ok(upstream) = upstream(target).await else { continue };
            let (sender, receiver) = mpsc::channel(IN_FLIGHT);
            seed = seed.wrapping_add(1);
            let client = Client {
                address: from,
                socket: Arc::clone(&socket),
                upstream,
                target,
                received: receiver,
                plan,
                random: Random::new(seed),
                state: state.clone(),
            };
            tasks.spawn(client.run());
            clients.insert(from, sender);
        }
        if let Some(client) = clients.get(&from) {
            let _ = client.try_send(buffer[..length].to_vec());
        }
    }
}

async fn upstream(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(any).await
}

/// The datagrams in flight in one direction, in the order of their arrival.
#[derive(Default)]
struct Flight(VecDeque<(Instant, Vec<u8>)>);

impl Flight {
    fn push(&mut self, datagram: Vec<u8>, plan: &Plan, random: &mut Random) {
        if !random.happens(plan.loss_per_million) && self.0.len() < IN_FLIGHT {
            self.0.push_back((Instant::now() + plan.delay, datagram));
        }
    }

    /// Waits until the first datagram is due; forever if there is none.
    async fn arrival(&self) {
        match self.0.front() {
            Some((due, _)) => tokio::time::sleep_until(*due).await,
            None => std::future::pending().await,
        }
    }
}

struct Client {
    address: SocketAddr,
    socket: Arc<UdpSocket>,
    upstream: UdpSocket,
    target: SocketAddr,
    received: mpsc::Receiver<Vec<u8>>,
    plan: Plan,
    random: Random,
    state: watch::Receiver<CableState>,
}

impl Client {
    fn is_cut(&self) -> bool {
        self.state.borrow().is_cut()
    }

    async fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM];
        let (mut up, mut down) = (Flight::default(), Flight::default());
        let mut cuts = self.state.borrow_and_update().cuts();
        loop {
            tokio::select! {
                changed = self.state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let state = *self.state.borrow_and_update();
                    if state.cuts() > cuts {
                        (up, down) = (Flight::default(), Flight::default());
                        cuts = state.cuts();
                        // A failure keeps the old port: the client then misses the NAT fault, not its datagrams.
                        if let Ok(other) = upstream(self.target).await {
                            self.upstream = other;
                        }
                    }
                }
                datagram = tokio::time::timeout(IDLE_TIMEOUT, self.received.recv()) => match datagram {
                    Ok(Some(datagram)) if !self.is_cut() => up.push(datagram, &self.plan, &mut self.random),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return,
                },
                received = self.upstream.recv_from(&mut buffer) => {
                    // An error belongs to an earlier datagram: the target does not listen.
                    if let Ok((length, from)) = received
                        && from == self.target
                        && !self.is_cut()
                    {
                        down.push(buffer[..length].to_vec(), &self.plan, &mut self.random);
                    }
                }
                () = up.arrival() => if let Some((_, datagram)) = up.0.pop_front() {
                    let _ = self.upstream.send_to(&datagram, self.target).await;
                },
                () = down.arrival() => if let Some((_, datagram)) = down.0.pop_front() {
                    let _ = self.socket.send_to(&datagram, self.address).await;
                },
            }
        }
    }
}
