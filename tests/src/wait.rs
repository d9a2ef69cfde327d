//! Waits for a condition, never for a time: on a runtime, which fail the test, and without one, which answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for something that should happen at once. Generous, since test machines are slow and shared.
pub const SOON: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(10);

/// Time that one answer of a status page may take.
const ANSWER: Duration = Duration::from_secs(2);

/// Asks until there is an answer.
///
/// # Panics
/// If there is no answer within [`SOON`], naming `what` was waited for.
pub async fn until<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    let answer = try_until(SOON, ask).await;
    answer.unwrap_or_else(|| panic!("waited {SOON:?} for this: {what}"))
}

/// Asks until there is an answer; `None` once `bound` is over.
pub async fn try_until<T>(bound: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        if since.elapsed() >= bound {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Bounds a future that must end by itself.
///
/// # Panics
/// If it has not ended after [`SOON`], naming `what` was waited for.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {SOON:?} for this: {what}"),
    }
}

/// Asks until there is an answer, with no runtime; `None` once `bound` is over.
pub fn poll<T>(bound: Duration, ask: impl FnMut() -> Option<T>) -> Option<T> {
    poll_every(POLL, bound, ask)
}

/// The same with so much time between two questions.
pub fn poll_every<T>(pause: Duration, bound: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
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

/// Whether something accepts on the unix socket.
#[must_use]
pub fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Whether `/readyz` at this address answers 200.
#[must_use]
pub fn is_ready(status: SocketAddr) -> bool {
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
