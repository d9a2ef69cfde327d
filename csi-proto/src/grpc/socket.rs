//! A unix socket optimized for `h2`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as Socket;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// A socket that registers for write readiness only while a write waits, and that does not support vectored writes.
///
/// The kernel reports a unix socket as writable whenever the other end has read from it. Tokio is always registered for that,
/// so that every sent message costs one more wake-up, as expensive as the message itself. This socket is registered only while
/// a write waits.
///
/// With vectored writes, `h2` copies only payloads under 256 bytes into its write buffer and flushes after each larger one;
/// without, it copies payloads under 1 KiB. Headers, a typical CSI response and trailers then need one system call instead of
/// two.
#[derive(Debug)]
pub struct QuietSocket {
    socket: AsyncFd<Socket>,
    /// The registration for write readiness; set only while a write waits for buffer space.
    writable: Option<AsyncFd<Socket>>,
    /// Size of the next read in bytes.
    read_size: usize,
}

/// Smallest and largest read in bytes. The buffer is zeroed before each read, so that small messages need small reads.
const READ_SIZE: (usize, usize) = (2 << 10, 64 << 10);

/// Returns the size of the next read: doubled after a full read, halved after a nearly empty one.
fn next_read_size(asked: usize, read: usize) -> usize {
    let next = if read == asked {
        asked.saturating_mul(2)
    } else if read < asked / 4 {
        asked / 2
    } else {
        asked
    };
    next.clamp(READ_SIZE.0, READ_SIZE.1)
}

impl QuietSocket {
    /// Wraps a connected socket.
    ///
    /// # Errors
    /// If the system cannot register the socket.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its I/O driver enabled.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        let socket = socket.into_std()?;
        Ok(Self { socket: watch(socket, Interest::READABLE)?, writable: None, read_size: READ_SIZE.0 })
    }
}

#[allow(
    deprecated,
    reason = "unsafe is forbidden here, and a socket of the standard library never changes its descriptor"
)]
fn watch(socket: Socket, interest: Interest) -> io::Result<AsyncFd<Socket>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncRead for QuietSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let asked = self.read_size.min(buf.remaining());
            let unfilled = buf.initialize_unfilled_to(asked);
            match ready.try_io(|socket| socket.get_ref().read(unfilled)) {
                Ok(Ok(read)) => {
                    if read > 0 && read < asked {
                        // The socket is empty: another read would only return WouldBlock (epoll(7), question 9).
                        ready.clear_ready();
                    }
                    self.read_size = next_read_size(asked, read);
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for QuietSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { socket, writable, .. } = &mut *self;
        loop {
            if let Some(writable) = writable {
                ready!(writable.poll_write_ready(cx))?.clear_ready();
            }
            match socket.get_ref().write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if writable.is_none() {
                        let again = socket.get_ref().try_clone()?;
                        *writable = Some(watch(again, Interest::WRITABLE)?);
                    }
                }
                written => {
                    *writable = None;
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn transfers_more_than_the_kernel_buffers_both_ways() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (QuietSocket::new(one).unwrap(), QuietSocket::new(other).unwrap());
        let sent: Vec<u8> = (0..4_000_000_u32).map(|number| number as u8).collect();
        let expected = sent.clone();
        let echo = tokio::spawn(async move {
            let (mut buffer, mut all) = (vec![0; 100_000], Vec::new());
            loop {
                match other.read(&mut buffer).await.unwrap() {
                    0 => return all,
                    read => {
                        all.extend_from_slice(&buffer[..read]);
                        other.write_all(&[1]).await.unwrap();
                    }
                }
            }
        });
        one.write_all(&sent).await.unwrap();
        one.shutdown().await.unwrap();
        let mut answers = Vec::new();
        one.read_to_end(&mut answers).await.unwrap();
        assert!(echo.await.unwrap() == expected && !answers.is_empty());
        assert!(one.writable.is_none(), "still registered for writing");
    }
}
