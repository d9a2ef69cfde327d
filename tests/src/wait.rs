//! Bounded waits for a condition. Some run on a tokio runtime, and some block the thread.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for an event that should happen at once. The bound is long, since test machines are slow and shared.
pub const SOON: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(10);

/// The maximum wait for one answer of a status page.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Polls `ask` until it returns a value.
///
/// # Panics
/// If `ask` returns none within [`SOON`]. The message names `what`.
pub async fn until<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    let answer = try_until(SOON, ask).await;
    answer.unwrap_or_else(|| panic!("not within {SOON:?}: {what}"))
}

/// Polls `ask` until it returns a value. Returns `None` if it returns none within `bound`.
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

/// Waits for a future.
///
/// # Panics
/// If the future has not ended after [`SOON`]. The message names `what`.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {SOON:?}: {what}"),
    }
}

/// Polls `ask` on the current thread until it returns a value. Returns `None` if it returns none within `bound`.
pub fn poll<T>(bound: Duration, ask: impl FnMut() -> Option<T>) -> Option<T> {
    poll_every(POLL, bound, ask)
}

/// Polls as [`poll`] does, with this pause between two calls of `ask`.
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
            reason = "another process gives no event to wait for, and no runtime runs on this thread"
        )]
        std::thread::sleep(pause);
    }
}

/// Returns whether a process accepts connections on the unix socket.
#[must_use]
pub fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Returns whether `/readyz` at this address answers 200.
#[must_use]
pub fn is_ready(status: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&status, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
