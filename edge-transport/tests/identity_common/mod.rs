//! A hub and peers with certificates over websocket and QUIC, and files that a test overwrites.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use edge_transport::link::{Dialer, Listener};
use edge_transport::tls::{ClientTls, ServerTls, TlsPaths};
use edge_transport::{Peer, PeerState};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::ends;
use crate::link_pki::Issued;
use crate::session_common::{Echo, peer_id, service_name};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Over {
    Wss,
    Quic,
}

pub(crate) const BOTH: [Over; 2] = [Over::Wss, Over::Quic];

pub(crate) async fn listen(over: Over, tls: ServerTls) -> (Box<dyn Listener>, u16) {
    let (listener, to) = match over {
        Over::Wss => ends::ws(Some(tls)).await,
        Over::Quic => ends::quic(&tls).await,
    };
    (listener, to.port())
}

pub(crate) fn dialer(over: Over, port: u16, tls: &ClientTls) -> Box<dyn Dialer> {
    match over {
        Over::Wss => ends::dial_ws(port, Some(tls.clone())),
        Over::Quic => ends::dial_quic(port, tls),
    }
}

/// Returns why the peer is not connected.
pub(crate) async fn refusal(peer: &Peer) -> String {
    let mut watch = peer.watch();
    let refused = watch.wait_for(|state| matches!(state, PeerState::Connecting { last_error: Some(_), .. }));
    format!("{:?}", *timeout(TIMEOUT, refused).await.unwrap().unwrap())
}

pub(crate) async fn connected(name: &str, dialer: Box<dyn Dialer>) -> Peer {
    let builder = Peer::builder(peer_id(name)).dialer(dialer);
    let peer = builder.service(service_name("echo"), Echo::default()).start().unwrap();
    timeout(TIMEOUT, peer.connected()).await.unwrap().unwrap();
    peer
}

/// A directory with files that a test overwrites.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    pub(crate) fn write_pair(&self, issued: &Issued) {
        self.write("cert.pem", &issued.certificate);
        self.write("key.pem", &issued.key);
    }

    pub(crate) fn paths(&self) -> TlsPaths {
        TlsPaths::default()
            .with_certificate(self.path("cert.pem"), self.path("key.pem"))
            .with_authorities(self.path("ca.pem"))
    }
}
