//! The suites for listeners and dialers: every kind of link passes them, and they reject implementations with one fault.
#![cfg(all(feature = "uds", feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::{Arc, Mutex};

use edge_transport::link::{
    Address, Credentials, DEFAULT_MAX_FRAME, DialOptions, Dialer, Incoming, Link, LinkError, LinkKind,
    LinkSender, ListenOptions, Listener, Protection, conformance, memory, queue,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

type Ends = Result<(Box<dyn Listener>, Box<dyn Dialer>), LinkError>;

const KIND: LinkKind = LinkKind::custom("pipe");

/// Runs both suites on listeners of an address.
async fn suites(address: &str) {
    let ends = || async {
        let listen = ListenOptions::default().insecure(true);
        let listener = address.parse::<Address>()?.listen(&listen).await?;
        let dial = DialOptions::default().insecure(true);
        let dialer = listener.local_address().parse::<Address>()?.dialer(&dial)?;
        Ok((listener, dialer))
    };
    conformance::run_listener(ends).await.unwrap();
    conformance::run_dialer(ends).await.unwrap();
}

#[tokio::test]
async fn memory_ends_conform() {
    let ends = || async {
        let (listener, dialer) = memory::listen("hub", 1 << 20);
        Ok((listener, Box::new(dialer) as Box<dyn Dialer>))
    };
    conformance::run_listener(ends).await.unwrap();
    conformance::run_dialer(ends).await.unwrap();
}

#[tokio::test]
async fn uds_ends_conform() {
    let directory = tempfile::tempdir().unwrap();
    suites(&format!("unix://{}/s", directory.path().display())).await;
}

#[tokio::test]
async fn ws_ends_conform() {
    suites("ws://127.0.0.1:0").await;
}

#[tokio::test]
async fn wss_ends_conform() {
    suites("wss://127.0.0.1:0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_ends_conform() {
    suites("quic://127.0.0.1:0").await;
}

fn framed(io: DuplexStream) -> Link {
    Link::framed(io, KIND, "pipe", Credentials::None, DEFAULT_MAX_FRAME).with_protection(Protection::Private)
}

/// Dials pipes with a handshake of one byte each way.
#[derive(Clone)]
struct PipeDialer(LinkSender);

/// The handshake of the accepting end.
async fn accept(mut far: DuplexStream) -> Result<Link, LinkError> {
    far.read_u8().await.map_err(|_| LinkError::Lost)?;
    far.write_u8(1).await.map_err(|_| LinkError::Lost)?;
    Ok(framed(far))
}

#[async_trait::async_trait]
impl Dialer for PipeDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (mut near, far) = duplex(1 << 16);
        self.0.send(Incoming::new(accept(far))).await.map_err(|_| LinkError::Lost)?;
        tokio::task::yield_now().await;
        near.write_u8(1).await.map_err(|_| LinkError::Lost)?;
        near.read_u8().await.map_err(|_| LinkError::Lost)?;
        Ok(framed(near))
    }

    fn address(&self) -> &str {
        "pipe:"
    }
}

fn pipes() -> (Box<dyn Listener>, PipeDialer) {
    let (sender, listener) = queue(KIND, "pipe:", 64);
    (listener, PipeDialer(sender))
}

#[tokio::test]
async fn pipes_conform() {
    let ends = || async {
        let (listener, dialer) = pipes();
        Ok((listener, Box::new(dialer) as Box<dyn Dialer>))
    };
    conformance::run_listener(ends).await.unwrap();
    conformance::run_dialer(ends).await.unwrap();
}

/// What is wrong with a listener.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ListenerFault {
    /// It waits once more after it has taken a connection.
    LosesDropped,
    /// It performs the handshake before it returns.
    WaitsForHandshake,
    /// It states another kind than its links.
    OtherKind,
    /// It keeps connections that the hub drops.
    KeepsRefused,
    /// It accepts only 8 connections.
    StopsAtEight,
}

struct BadListener {
    inner: Box<dyn Listener>,
    fault: ListenerFault,
    accepted: usize,
    kept: Arc<Mutex<Vec<Incoming>>>,
}

#[async_trait::async_trait]
impl Listener for BadListener {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        let incoming = self.inner.accept().await?;
        self.accepted += 1;
        match self.fault {
            ListenerFault::LosesDropped => tokio::task::yield_now().await,
            ListenerFault::WaitsForHandshake => {
                let link = incoming.await;
                return Ok(Incoming::new(std::future::ready(link)));
            }
            ListenerFault::KeepsRefused => {
                let kept = Arc::clone(&self.kept);
                kept.lock().unwrap().push(incoming);
                return Ok(Incoming::new(async move {
                    let incoming = kept.lock().unwrap().remove(0);
                    incoming.await
                }));
            }
            ListenerFault::StopsAtEight if self.accepted > 8 => std::future::pending().await,
            ListenerFault::StopsAtEight | ListenerFault::OtherKind => {}
        }
        Ok(incoming)
    }

    fn kind(&self) -> LinkKind {
        if self.fault == ListenerFault::OtherKind { LinkKind::WSS } else { self.inner.kind() }
    }

    fn local_address(&self) -> String {
        self.inner.local_address()
    }
}

#[tokio::test(start_paused = true)]
async fn bad_listeners_are_rejected() {
    for (fault, expected) in [
        (ListenerFault::LosesDropped, "an accept that is dropped"),
        (ListenerFault::WaitsForHandshake, "delays no other"),
        (ListenerFault::OtherKind, "the kind of its links"),
        (ListenerFault::KeepsRefused, "is refused"),
        (ListenerFault::StopsAtEight, "delays no other"),
    ] {
        let ends = || async {
            let (inner, dialer) = pipes();
            let listener = BadListener { inner, fault, accepted: 0, kept: Arc::default() };
            Ends::Ok((Box::new(listener), Box::new(dialer)))
        };
        let violation = conformance::run_listener(ends).await.unwrap_err();
        assert!(violation.case.contains(expected), "{fault:?}: {violation}");
    }
}

/// What is wrong with a dialer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DialerFault {
    /// It dials one link at a time.
    OneAtATime,
    /// It continues a dial that was dropped.
    Continues,
    /// It fails after its third dial.
    StopsAtThree,
    /// It waits for a listener that was dropped.
    Waits,
}

struct BadDialer {
    inner: PipeDialer,
    fault: DialerFault,
    dials: tokio::sync::Mutex<usize>,
}

#[async_trait::async_trait]
impl Dialer for BadDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let mut dials = self.dials.lock().await;
        *dials += 1;
        match self.fault {
            DialerFault::OneAtATime => {
                let link = self.inner.dial().await;
                drop(dials);
                link
            }
            DialerFault::Continues => {
                drop(dials);
                let (inner, (sender, receiver)) = (self.inner.clone(), tokio::sync::oneshot::channel());
                tokio::spawn(async move {
                    if let Err(unused) = sender.send(inner.dial().await) {
                        std::mem::forget(unused);
                    }
                });
                receiver.await.unwrap_or(Err(LinkError::Lost))
            }
            DialerFault::StopsAtThree if *dials > 3 => Err(LinkError::Lost),
            DialerFault::StopsAtThree => {
                drop(dials);
                self.inner.dial().await
            }
            DialerFault::Waits => {
                drop(dials);
                match self.inner.dial().await {
                    Ok(link) => Ok(link),
                    Err(_) => std::future::pending().await,
                }
            }
        }
    }

    fn address(&self) -> &str {
        "pipe:"
    }
}

#[tokio::test(start_paused = true)]
async fn bad_dialers_are_rejected() {
    for (fault, expected) in [
        (DialerFault::OneAtATime, "delays no other"),
        (DialerFault::Continues, "leaves no link"),
        (DialerFault::StopsAtThree, "many dials at once"),
        (DialerFault::Waits, "a refused dial ends"),
    ] {
        let ends = || async {
            let (listener, inner) = pipes();
            let dialer = BadDialer { inner, fault, dials: tokio::sync::Mutex::default() };
            Ends::Ok((Box::new(listener), Box::new(dialer)))
        };
        let violation = conformance::run_dialer(ends).await.unwrap_err();
        assert!(violation.case.contains(expected), "{fault:?}: {violation}");
    }
}
