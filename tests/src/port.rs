//! Ports for processes that a test starts.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ports that a host's defaults give to no dialler, and Kubernetes to no service: what is free here stays so until its
/// process listens, however many connections others open meanwhile.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// How many of them were tried, beginning with a random one: two processes hardly ever try the same one.
static TRIED: AtomicUsize = AtomicUsize::new(0);
static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()) >> 1);

/// A port of the loopback address that nothing uses now, neither with TCP nor with UDP. No two calls in one process get the same
/// one of 20000 to 29999; after all of those were tried the kernel chooses, and a dialler may get that port first.
///
/// # Panics
/// If the kernel has none.
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

/// The port so many behind the first.
fn nth(at: usize) -> Option<u16> {
    let offset = FIRST.checked_add(u64::try_from(at).ok()?)? % u64::try_from(PORTS.len()).ok()?;
    PORTS.start.checked_add(u16::try_from(offset).ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_free_port_is_no_diallers_and_another_one_each_time() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free()).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        assert_eq!(ports.len(), 200);
        let all: BTreeSet<u16> = (0..PORTS.len()).filter_map(nth).collect();
        assert_eq!(all, PORTS.collect());
    }
}
