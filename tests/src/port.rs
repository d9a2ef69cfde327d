//! Ports for processes that a test starts.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ports outside the default ranges of ephemeral ports and of Kubernetes node ports. A free port in this range stays
/// free until its process listens, even if other processes open connections meanwhile.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The number of ports tried so far.
static TRIED: AtomicUsize = AtomicUsize::new(0);
/// The offset of the first port. It is random, so that two processes hardly ever try the same port.
static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()) >> 1);

/// Returns a port of the loopback address that is free for TCP and UDP. Each call in a process returns another port of
/// 20000 to 29999. Once all of them were tried, the kernel chooses a port, which a dialler may take before the caller
/// listens.
///
/// # Panics
/// If the kernel has no free port.
#[must_use]
pub fn free() -> u16 {
    let next = || {
        let at = TRIED.fetch_add(1, Ordering::Relaxed);
        (at < PORTS.len()).then_some(at)
    };
    let port = std::iter::from_fn(next).filter_map(nth).find(|&port| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
            && UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    port.unwrap_or_else(|| {
        let any = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        any.and_then(|listener| listener.local_addr()).expect("a free port").port()
    })
}

/// Returns the port at this distance from the first one, wrapping around.
fn nth(at: usize) -> Option<u16> {
    let offset = FIRST.checked_add(u64::try_from(at).ok()?)? % u64::try_from(PORTS.len()).ok()?;
    PORTS.start.checked_add(u16::try_from(offset).ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_free_port_is_in_the_range_and_different() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free()).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        assert_eq!(ports.len(), 200);
        let all: BTreeSet<u16> = (0..PORTS.len()).filter_map(nth).collect();
        assert_eq!(all, PORTS.collect());
    }
}
