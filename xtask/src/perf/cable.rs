//! A cable between two network ports that delays and loses packets: not every kernel has netem.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::PerfError;
use super::chain::pause;

/// Largest packet with its Ethernet header, in bytes.
const MAX_PACKET: usize = 1 << 16;

/// A packet that the port itself has sent (packet(7)).
const OUTGOING: u8 = 4;

/// What a network does to packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Condition {
    /// The time of a packet from one end to the other.
    pub(super) delay: Duration,
    /// The share of lost packets in each direction, between 0 and 1.
    pub(super) loss: f64,
}

/// Forwards the packets of two ports to each other, until it is dropped.
#[derive(Debug)]
pub(super) struct Cable {
    ended: Arc<AtomicBool>,
}

impl Cable {
    pub(super) fn between(ports: [&str; 2], condition: Condition) -> Result<Self, PerfError> {
        let [near, far] = [open(ports[0])?, open(ports[1])?];
        let cable = Self { ended: Arc::default() };
        for (seed, from, to) in [(1, &near, &far), (2, &far, &near)] {
            let (ended, from, to) = (Arc::clone(&cable.ended), Arc::clone(from), Arc::clone(to));
            let (packets, waiting) = channel();
            let mut random = fastrand::Rng::with_seed(seed);
            thread::spawn(move || {
                let is_lost = || random.f64() < condition.loss;
                receive(&from, condition.delay, &packets, &ended, is_lost);
            });
            thread::spawn(move || deliver(&to, &waiting));
        }
        Ok(cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Opens a socket that receives all packets of a port.
fn open(port: &str) -> Result<Arc<OwnedFd>, PerfError> {
    let failed = |error: nix::Error| PerfError::io(format!("open the network port {port}"))(error.into());
    let found = getifaddrs().map_err(failed)?.find(|found| {
        found.interface_name == port && found.address.as_ref().is_some_and(|at| at.as_link_addr().is_some())
    });
    let address: LinkAddr = *found
        .and_then(|found| found.address)
        .as_ref()
        .and_then(|at| at.as_link_addr())
        .ok_or_else(|| failed(nix::Error::ENODEV))?;
    let all = SockProtocol::EthAll;
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all).map_err(failed)?;
    bind(socket.as_raw_fd(), &address).map_err(failed)?;
    // So that the thread notices the end of the cable.
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(200)).map_err(failed)?;
    Ok(Arc::new(socket))
}

fn receive(
    from: &OwnedFd,
    delay: Duration,
    packets: &Sender<(Instant, Vec<u8>)>,
    ended: &AtomicBool,
    mut is_lost: impl FnMut() -> bool,
) {
    let mut buffer = vec![0; MAX_PACKET];
    while !ended.load(Ordering::Relaxed) {
        let Ok((length, Some(source))) = recvfrom::<LinkAddr>(from.as_raw_fd(), &mut buffer) else {
            continue;
        };
        let packet = buffer.get(..length).unwrap_or_default();
        if source.pkttype() != OUTGOING
            && !is_lost()
            && packets.send((Instant::now() + delay, packet.to_vec())).is_err()
        {
            return;
        }
    }
}

fn deliver(to: &OwnedFd, packets: &Receiver<(Instant, Vec<u8>)>) {
    for (due, packet) in packets {
        pause(due.saturating_duration_since(Instant::now()));
        // A port that is down loses the packet.
        let _ = send(to.as_raw_fd(), &packet, MsgFlags::empty());
    }
}
