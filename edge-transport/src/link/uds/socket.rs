//! A unix socket that registers for write readiness only while a write waits.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream as Socket;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// A connected unix socket that is always registered for read readiness, and for write readiness only while a write waits.
///
/// The kernel reports a unix socket as writable whenever the other end has read from it, and tokio's own type is always
/// registered for that: every sent frame would cost one more wake-up, as expensive as the frame itself.
#[derive(Debug)]
pub(super) struct ReadSocket {
    socket: AsyncFd<Socket>,
    /// Set only while a write waits for buffer space.
    writable: Option<AsyncFd<Socket>>,
}

impl ReadSocket {
    /// Wraps a connected socket.
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        let socket = socket.into_std()?;
        Ok(Self { socket: watch(socket, Interest::READABLE)?, writable: None })
    }
}

#[allow(
    deprecated,
    reason = "unsafe is forbidden here, and a socket of the standard library closes its own descriptor"
)]
fn watch(socket: Socket, interest: Interest) -> io::Result<AsyncFd<Socket>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncRead for ReadSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            let asked = unfilled.len();
            match ready.try_io(|socket| socket.get_ref().read(unfilled)) {
                Ok(Ok(read)) => {
                    if read > 0 && read < asked {
                        // The socket is empty: another read would only return WouldBlock (epoll(7), question 9).
                        ready.clear_ready();
                    }
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl ReadSocket {
    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(writable) = &self.writable {
                ready!(writable.poll_write_ready(cx))?.clear_ready();
            }
            match write(self.socket.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.writable.is_none() {
                        let again = self.socket.get_ref().try_clone()?;
                        self.writable = Some(watch(again, Interest::WRITABLE)?);
                    }
                }
                written => {
                    self.writable = None;
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncWrite for ReadSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |mut socket| socket.write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |mut socket| socket.write_vectored(pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
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
        let (mut one, mut other) = (ReadSocket::new(one).unwrap(), ReadSocket::new(other).unwrap());
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
        assert!(one.writable.is_none(), "still registered for write readiness");
    }
}
