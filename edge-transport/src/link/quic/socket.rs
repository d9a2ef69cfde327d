//! The UDP socket of a dialing end, with a small receive buffer.
//!
//! Where the kernel joins up to 64 datagrams into one message (`UDP_GRO`), quinn allocates room for 32 such messages, 3 MB, for
//! each endpoint. A dialing end has an endpoint for each link, and receives from one peer: this socket has room for one
//! message, and hands out its datagrams one by one.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, TokioRuntime, UdpPoller};

/// Maximum number of bytes of a message: the length field of UDP has 16 bits.
const MAX_MESSAGE: usize = u16::MAX as usize;

/// Opens an endpoint that can only dial, at a new port of the address.
pub(super) fn dialing_endpoint(local: SocketAddr) -> io::Result<Endpoint> {
    let socket = TokioRuntime.wrap_udp_socket(std::net::UdpSocket::bind(local)?)?;
    let socket = Arc::new(Socket { inner: socket, received: Mutex::default() });
    Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))
}

#[derive(Debug)]
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    received: Mutex<Received>,
}

/// The last message, and how much of it is handed out.
struct Received {
    buffer: Box<[u8]>,
    message: RecvMeta,
    handed_out: usize,
}

impl Default for Received {
    fn default() -> Self {
        Self { buffer: vec![0; MAX_MESSAGE].into(), message: RecvMeta::default(), handed_out: 0 }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("message", &self.message).finish_non_exhaustive()
    }
}

impl Received {
    /// Copies datagrams to the buffers, and returns their number. A datagram that is longer than its buffer is cut, as the kernel
    /// does.
    fn hand_out(&mut self, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let rest = self.buffer.get(self.handed_out..self.message.len).unwrap_or_default();
            let Some(datagram) = rest.chunks(self.message.stride.max(1)).next() else { break };
            let length = datagram.len().min(buffer.len());
            buffer[..length].copy_from_slice(&datagram[..length]);
            *meta = RecvMeta { len: length, stride: length, ..self.message };
            self.handed_out += datagram.len();
            count += 1;
        }
        count
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let Received { buffer, message, handed_out } = &mut *received;
        // An empty datagram is no packet of QUIC.
        while *handed_out >= message.len {
            (*message, *handed_out) = (RecvMeta::default(), 0);
            let mut buffers = [IoSliceMut::new(buffer)];
            ready!(self.inner.poll_recv(cx, &mut buffers, std::slice::from_mut(message)))?;
        }
        Poll::Ready(Ok(received.hand_out(buffers, metas)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_each_datagram_of_a_message() {
        let mut received = Received::default();
        received.buffer[..10].copy_from_slice(b"aaaabbbbcc");
        received.message = RecvMeta { len: 10, stride: 4, ..RecvMeta::default() };
        let mut datagrams = Vec::new();
        loop {
            let ([mut first, mut second], mut metas) = ([[0; 4]; 2], [RecvMeta::default(); 2]);
            let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            let count = received.hand_out(&mut buffers, &mut metas);
            let filled = buffers.iter().zip(&metas).take(count);
            datagrams.push(filled.map(|(buffer, meta)| buffer[..meta.len].to_vec()).collect::<Vec<_>>());
            if count == 0 {
                break;
            }
        }
        let expected: [&[&[u8]]; 3] = [&[b"aaaa", b"bbbb"], &[b"cc"], &[]];
        assert_eq!(datagrams, expected);
    }
}
