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

use super::weather::{Plan, Sky};
use crate::random::Random;

/// Clients at once; what comes from more is dropped.
const CLIENTS: usize = 64;

/// A client that is silent for so long is forgotten, as a NAT does.
const SILENCE: Duration = Duration::from_secs(60);

/// Datagrams of one client and direction that are on their way; more are dropped, as by a router.
const ON_THE_WAY: usize = 4096;

/// Largest datagram.
const DATAGRAM: usize = 65_535;

/// Forwards until it is aborted.
pub(super) async fn forward(socket: UdpSocket, target: SocketAddr, plan: Plan, sky: watch::Receiver<Sky>) {
    let socket = Arc::new(socket);
    let mut clients: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM];
    let mut seed = plan.seed;
    loop {
        // An error is one that an earlier datagram has met.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        while tasks.try_join_next().is_some() {}
        clients.retain(|_, client| !client.is_closed());
        if !clients.contains_key(&from) && clients.len() < CLIENTS {
            let Ok(upstream) = upstream(target).await else { continue };
            let (sender, receiver) = mpsc::channel(ON_THE_WAY);
            seed = seed.wrapping_add(1);
            let client = Client {
                address: from,
                socket: Arc::clone(&socket),
                upstream,
                target,
                received: receiver,
                plan,
                random: Random::new(seed),
                sky: sky.clone(),
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

/// What is on its way in one direction, in the order of its arrival.
#[derive(Default)]
struct Way(VecDeque<(Instant, Vec<u8>)>);

impl Way {
    fn take(&mut self, datagram: Vec<u8>, plan: &Plan, random: &mut Random) {
        if !random.happens(plan.loss_per_million) && self.0.len() < ON_THE_WAY {
            self.0.push_back((Instant::now() + plan.delay, datagram));
        }
    }

    /// When the first one arrives; never, if there is none.
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
    sky: watch::Receiver<Sky>,
}

impl Client {
    fn is_cut(&self) -> bool {
        self.sky.borrow().is_cut()
    }

    async fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM];
        let (mut up, mut down) = (Way::default(), Way::default());
        let mut cuts = self.sky.borrow_and_update().cuts();
        loop {
            tokio::select! {
                changed = self.sky.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let sky = *self.sky.borrow_and_update();
                    if sky.cuts() > cuts {
                        (up, down) = (Way::default(), Way::default());
                        cuts = sky.cuts();
                        // The old port is as good as gone; a new one cannot always be had at once, but nearly.
                        if let Ok(other) = upstream(self.target).await {
                            self.upstream = other;
                        }
                    }
                }
                datagram = tokio::time::timeout(SILENCE, self.received.recv()) => match datagram {
                    Ok(Some(datagram)) if !self.is_cut() => up.take(datagram, &self.plan, &mut self.random),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return,
                },
                received = self.upstream.recv_from(&mut buffer) => {
                    // An error is that of an earlier datagram: nobody listens at the target.
                    if let Ok((length, from)) = received
                        && from == self.target
                        && !self.is_cut()
                    {
                        down.take(buffer[..length].to_vec(), &self.plan, &mut self.random);
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
