//! Certificates that are refused while the sessions of their peers are open: removed authorities and revocation lists.

#![cfg(all(feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod identity_common;
mod link_pki;
mod session_common;

use std::time::SystemTime;

use edge_transport::advanced::ReloadEvent;
use edge_transport::link::Dialer;
use edge_transport::reload::FileWatch;
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use edge_transport::{Hub, Peer, PeerState};
use identity_common::{BOTH, Files, Over, TIMEOUT, connected, dialer, listen, refusal};
use link_pki::{Authority, Issued};
use session_common::peer_id;
use tokio::time::timeout;

/// A hub with files of authorities and revocation lists.
struct Revocation {
    over: Over,
    files: Files,
    root: Authority,
    hub: Hub,
    port: u16,
    watch: FileWatch,
}

impl Revocation {
    /// The files are `ca.pem` and, if a text is given, `crl.pem`.
    async fn new(over: Over, root: Authority, authorities: &str, lists: Option<&str>) -> Self {
        let files = Files::new();
        files.write_pair(&root.issue("hub"));
        files.write("ca.pem", authorities);
        let mut paths = files.paths();
        if let Some(lists) = lists {
            paths = paths.with_revocation_lists(files.write("crl.pem", lists));
        }
        let server = ServerTls::open_when_valid(paths, ClientAuth::Required);
        let watch = FileWatch::new().server(&server);
        let (listener, port) = listen(over, server.clone()).await;
        let hub = Hub::builder().listener(listener).client_certificates(&server).start().unwrap();
        Self { over, files, root, hub, port, watch }
    }

    fn dialer(&self, issued: &Issued) -> Box<dyn Dialer> {
        dialer(self.over, self.port, &ClientTls::new(&issued.trusting(&self.root)).unwrap())
    }

    /// Replaces a file, and returns what the watch reports.
    fn replace(&self, file: &str, text: impl AsRef<[u8]>) -> Vec<ReloadEvent> {
        self.files.write(file, text);
        self.watch.check(SystemTime::now())
    }
}

/// Waits until the session has ended for this cause.
async fn ended(peer: &Peer, expected: &str) {
    let refused = |state: &PeerState| match state {
        PeerState::Connecting { last_error: Some(cause), .. } => cause.contains(expected),
        _ => false,
    };
    let outcome = timeout(TIMEOUT, peer.watch().wait_for(refused)).await.map(drop);
    assert!(outcome.is_ok(), "{expected}: {:?}", peer.state());
}

fn since(peer: &Peer) -> tokio::time::Instant {
    let PeerState::Connected { since, .. } = peer.state() else { panic!("{:?}", peer.state()) };
    since.into()
}

/// Waits until the hub has ended as many sessions.
async fn refused(hub: &Hub, count: u64) {
    let mut events = hub.presence();
    while hub.stats().unauthenticated < count {
        timeout(TIMEOUT, events.recv()).await.unwrap().unwrap();
    }
}

/// Sessions whose authority is removed end; the sessions of other authorities stay.
#[tokio::test]
async fn session_ends_when_its_authority_is_removed() {
    for over in BOTH {
        let (root, other) = (Authority::new(), Authority::new());
        let authorities = root.pem() + &other.pem();
        let net = Revocation::new(over, root, &authorities, None).await;
        let one = connected("edge-1", net.dialer(&net.root.issue("edge-1"))).await;
        let two = connected("edge-2", net.dialer(&other.issue("edge-2"))).await;
        let before = since(&one);

        assert!(matches!(&net.replace("ca.pem", net.root.pem())[..], [ReloadEvent::Reloaded { .. }]));
        ended(&two, "").await;
        refused(&net.hub, 1).await;
        // A second change: the session that stays was verified by the first one.
        net.replace("ca.pem", authorities);
        timeout(TIMEOUT, two.connected()).await.unwrap().unwrap();
        assert_eq!(since(&one), before, "{over:?}");
        assert_eq!(net.hub.stats().unauthenticated, 1, "{over:?}");
    }
}

/// A revoked certificate ends its session, and no resumption gets it in again; other certificates stay, and so do those of
/// the same serial number of another authority. A forged list changes nothing.
#[tokio::test]
async fn revocation_list_ends_sessions_and_refuses_new_ones() {
    for over in BOTH {
        let (root, other) = (Authority::named("root"), Authority::new());
        let (authorities, lists) =
            (root.pem() + &other.pem(), root.revoke(&[], 2090) + &other.revoke(&[], 2090));
        let net = Revocation::new(over, root, &authorities, Some(&lists)).await;
        let one = connected("edge-1", net.dialer(&net.root.issue_numbered("edge-1", 7))).await;
        let two = connected("edge-2", net.dialer(&net.root.issue_numbered("edge-2", 8))).await;
        let three = connected("edge-3", net.dialer(&other.issue_numbered("edge-3", 7))).await;
        let before = [since(&two), since(&three)];

        let forged = Authority::named("root").revoke(&[7, 8], 2090) + &other.revoke(&[], 2090);
        match &net.replace("crl.pem", forged)[..] {
            [ReloadEvent::Invalid { cause, .. }] => assert!(cause.contains("has not signed it"), "{cause}"),
            other => panic!("{other:?}"),
        }
        let lists = net.root.revoke(&[7], 2090) + &other.revoke(&[], 2090);
        assert!(matches!(&net.replace("crl.pem", lists)[..], [ReloadEvent::Reloaded { .. }]));
        refused(&net.hub, 1).await;
        // The peer dials again with the same TLS configuration, which would resume a session.
        ended(&one, "Revoked").await;
        assert_eq!([since(&two), since(&three)], before, "{over:?}");
        assert_eq!(net.hub.stats().unauthenticated, 1, "{over:?}");

        net.replace("crl.pem", net.root.revoke(&[], 2090));
        timeout(TIMEOUT, one.connected()).await.unwrap().unwrap();
    }
}

/// An authority revokes an intermediate one: the sessions of its certificates end.
#[tokio::test]
async fn revoked_intermediate_authority_ends_sessions() {
    for over in BOTH {
        let root = Authority::new();
        let (authorities, issuer) = (root.pem(), root.intermediate(9));
        let lists = root.revoke(&[], 2090) + &issuer.revoke(&[], 2090);
        let net = Revocation::new(over, root, &authorities, Some(&lists)).await;
        let one = connected("edge-1", net.dialer(&issuer.issue("edge-1"))).await;
        net.replace("crl.pem", net.root.revoke(&[9], 2090) + &issuer.revoke(&[], 2090));
        refused(&net.hub, 1).await;
        ended(&one, "").await;
    }
}

/// Without a list no peer is admitted: neither before the first list is there, nor under an authority that has none.
#[tokio::test]
async fn missing_revocation_list_refuses_peers() {
    for over in BOTH {
        let (root, other) = (Authority::new(), Authority::new());
        let authorities = root.pem();
        let net = Revocation::new(over, root, &authorities, Some("")).await;
        let issued = net.root.issue("edge-1");
        let dial = net.dialer(&issued);
        let is_refused = async || {
            let peer = Peer::builder(peer_id("edge-1")).dialer(net.dialer(&issued)).start().unwrap();
            let _ = refusal(&peer).await;
            peer.close().await;
        };
        is_refused().await;
        assert!(net.watch.unusable().unwrap().contains("no revocation list in"), "{over:?}");

        net.replace("crl.pem", other.revoke(&[], 2090));
        assert_eq!(net.watch.unusable(), None);
        is_refused().await;

        // An overdue list is used, and reported.
        let overdue = net.replace("crl.pem", net.root.revoke(&[], 2021));
        assert!(
            matches!(&overdue[..], [ReloadEvent::Reloaded { .. }, ReloadEvent::RevocationListOverdue { file, .. }]
                if file.ends_with("crl.pem")),
            "{overdue:?}"
        );
        assert_eq!(net.watch.check(SystemTime::now()), [], "once a day");
        let _edge = connected("edge-1", dial).await;
    }
}
