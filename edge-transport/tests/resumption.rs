//! TLS sessions that a client resumes.

#![cfg(all(feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod identity_common;
mod link_pki;
mod session_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use edge_transport::link::Dialer;
use edge_transport::reload::FileWatch;
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use edge_transport::{Hub, Peer};
use identity_common::{BOTH, Files, Over, TIMEOUT, connected, dialer, listen};
use link_pki::Authority;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use session_common::peer_id;
use tokio::time::timeout;

/// Counts how often a client presents its certificate: in each handshake that resumes no session.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn ResolvesClientCert>,
    presented: Arc<AtomicUsize>,
}

impl ResolvesClientCert for Counting {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.presented.fetch_add(1, Ordering::Relaxed);
        self.inner.resolve(hints, schemes)
    }

    fn has_certs(&self) -> bool {
        self.inner.has_certs()
    }
}

/// A hub whose files can change, and the dialer of edge-1.
struct Net {
    over: Over,
    authority: Authority,
    files: Files,
    watch: FileWatch,
    hub: Hub,
    dialer: Arc<dyn Dialer>,
    presented: Arc<AtomicUsize>,
}

impl Net {
    async fn new(over: Over) -> Self {
        let (authority, files) = (Authority::new(), Files::new());
        files.write_pair(&authority.issue("hub"));
        files.write("ca.pem", authority.pem());
        let lists = files.write("crl.pem", authority.revoke(&[], 2090));
        let server =
            ServerTls::open(files.paths().with_revocation_lists(lists), ClientAuth::Required).unwrap();
        let (watch, (listener, port)) =
            (FileWatch::new().server(&server), listen(over, server.clone()).await);
        let hub = Hub::builder().listener(listener).client_certificates(&server).start().unwrap();
        let client = ClientTls::new(&authority.issue_numbered("edge-1", 7).trusting(&authority)).unwrap();
        let mut config = (*client.config().unwrap()).clone();
        let (inner, presented) = (config.client_auth_cert_resolver, Arc::new(AtomicUsize::new(0)));
        config.client_auth_cert_resolver = Arc::new(Counting { inner, presented: Arc::clone(&presented) });
        let dialer = Arc::from(dialer(over, port, &ClientTls::from(Arc::new(config))));
        Self { over, authority, files, watch, hub, dialer, presented }
    }

    /// Connects and closes; returns how often the certificate has been presented until now.
    async fn connect(&self) -> usize {
        let peer = connected("edge-1", Box::new(Arc::clone(&self.dialer))).await;
        peer.close().await;
        self.presented.load(Ordering::Relaxed)
    }

    /// Replaces the revocation list.
    fn revoke(&self, serials: &[u8]) {
        self.files.write("crl.pem", self.authority.revoke(serials, 2090));
        self.watch.check(SystemTime::now());
    }
}

/// A client that connects again is the same peer, and presents its certificate only in the first handshake.
#[tokio::test]
async fn second_connection_needs_no_certificate() {
    for over in BOTH {
        let net = Net::new(over).await;
        let counts = [net.connect().await, net.connect().await, net.connect().await];
        assert_eq!(counts, [1, 1, 1], "{over:?}");
        assert_eq!(net.hub.stats().unauthenticated, 0, "{over:?}");
    }
}

/// New revocation lists end all sessions that could be resumed, and new files of the hub do too.
#[tokio::test]
async fn certificate_is_presented_again_after_a_change() {
    for over in BOTH {
        let net = Net::new(over).await;
        assert_eq!(net.connect().await, 1, "{over:?}");
        net.revoke(&[8]);
        assert_eq!([net.connect().await, net.connect().await], [2, 2], "{over:?}");
        net.files.write_pair(&net.authority.issue("hub"));
        net.watch.check(SystemTime::now());
        assert_eq!([net.connect().await, net.connect().await], [3, 3], "{over:?}");
    }
}

/// A client whose certificate was revoked cannot resume the session that it began before.
#[tokio::test]
async fn revoked_client_cannot_resume() {
    for over in BOTH {
        let net = Net::new(over).await;
        net.connect().await;
        net.revoke(&[7]);
        let dialer: Box<dyn Dialer> = Box::new(Arc::clone(&net.dialer));
        let peer = Peer::builder(peer_id("edge-1")).dialer(dialer).start().unwrap();
        let refusal = identity_common::refusal(&peer).await;
        assert!(refusal.contains("Revoked"), "{:?}: {refusal}", net.over);
        net.revoke(&[]);
        timeout(TIMEOUT, peer.connected()).await.unwrap().unwrap();
    }
}
