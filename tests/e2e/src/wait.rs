//! Waiting for other processes, which nothing but asking again can do.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(20);

/// Time that one answer of a status page may take.
const ANSWER: Duration = Duration::from_secs(2);

/// Asks until there is an answer; `None` once `bound` is over.
pub(crate) fn until<T>(bound: Duration, ask: impl FnMut() -> Option<T>) -> Option<T> {
    until_with(PAUSE, bound, ask)
}

/// The same with so much time between two questions.
pub(crate) fn until_with<T>(
    pause: Duration,
    bound: Duration,
    mut ask: impl FnMut() -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + bound;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        #[allow(
            clippy::disallowed_methods,
            reason = "a process of its own has no event to wait for, and no runtime waits here"
        )]
        std::thread::sleep(pause);
    }
}

/// Whether somebody accepts on the unix socket.
pub(crate) fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Whether `/readyz` at this address answers 200.
pub(crate) fn is_ready(status: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&status, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Ports that a host's defaults give to nobody who dials, and Kubernetes to no service: what is free here stays so until its
/// process listens, however many connections others open meanwhile.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// How many of them were looked at, beginning with one by chance: another process that does the same hardly ever meets this one.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()) >> 1);

/// A port of the loopback address that nobody uses now, neither with TCP nor with UDP. No two calls in one process get the same one
/// of [`PORTS`]; only when all of those are through comes one of the kernel's, which a dialler may get before its process listens.
pub(crate) fn free_port() -> std::io::Result<u16> {
    let next = || {
        let at = LOOKED_AT.fetch_add(1, Ordering::Relaxed);
        (at < PORTS.len()).then_some(at)
    };
    let port = std::iter::from_fn(next).filter_map(nth_port).find(|&port| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
            && UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    match port {
        Some(port) => Ok(port),
        None => Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port()),
    }
}

/// The port so many behind the first.
fn nth_port(at: usize) -> Option<u16> {
    let offset = FIRST.checked_add(u64::try_from(at).ok()?)? % u64::try_from(PORTS.len()).ok()?;
    PORTS.start.checked_add(u16::try_from(offset).ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_free_port_is_none_that_a_dialler_may_get_and_another_one_each_time() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free_port().unwrap()).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        assert_eq!(ports.len(), 200);
        let all: BTreeSet<u16> = (0..PORTS.len()).filter_map(nth_port).collect();
        assert_eq!(all, PORTS.collect());
    }
}
