//! Identities of peers: tokens, wrong names, and certificates that are reloaded while links are open.

#![cfg(all(feature = "ws", feature = "quic"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod identity_common;
mod link_pki;
mod session_common;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use edge_transport::advanced::ReloadEvent;
use edge_transport::advanced::frame::{self, End, Frame, Hello, Kind, Part, Reply};
use edge_transport::hub::{DenyList, HubBuilder};
use edge_transport::link::{DialOptions, Dialer, Lane, Link};
use edge_transport::reload::FileWatch;
use edge_transport::tls::{ClientAuth, ClientTls, Identity, ServerTls};
use edge_transport::token::{Token, TokenFile, TokenRefused, TokenVerifier, token_digest};
use edge_transport::{Hub, Peer, PeerState, Reason, Request, SessionId};
use futures_util::{SinkExt, StreamExt};
use identity_common::{BOTH, Files, Over, TIMEOUT, connected, dialer, listen, refusal};
use link_pki::Authority;
use session_common::{Echo, collect, echo, peer_id, service_name};
use tokio::time::timeout;

fn token(name: &str) -> Token {
    Token::new(format!("s3cret-of-{name}-0123456789")).unwrap()
}

fn with_token(dialer: Box<dyn Dialer>, token: Token) -> Box<dyn Dialer> {
    DialOptions::default().token(token).with_token(dialer)
}

fn token_hub(tokens: impl TokenVerifier + 'static) -> HubBuilder {
    Hub::builder().token_verifier(tokens)
}

#[tokio::test]
async fn authenticates_peers_by_token() {
    for over in BOTH {
        let (authority, files) = (Authority::new(), Files::new());
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Optional).unwrap();
        let (listener, port) = listen(over, tls).await;
        let lines =
            format!("edge-1 {}\nproxy {}\n", token_digest(&token("edge-1")), token_digest(&token("proxy")));
        let known = TokenFile::open(files.write("tokens", lines)).unwrap();
        let hub = token_hub(known.clone()).listener(listener).start().unwrap();
        let anonymous = Identity::without_certificate(authority.pem().as_bytes()).unwrap();
        let dial = || dialer(over, port, &ClientTls::new(&anonymous).unwrap());

        let _edge = connected("edge-1", with_token(dial(), token("edge-1"))).await;
        let proxy = Peer::builder(peer_id("proxy/replica-1")).dialer(with_token(dial(), token("proxy")));
        let proxy = proxy.start().unwrap();
        timeout(TIMEOUT, proxy.connected()).await.unwrap().unwrap();
        let (messages, _) = collect(proxy.call(peer_id("edge-1"), echo("x")).await.unwrap()).await;
        assert_eq!(messages, [Bytes::from("x")]);

        // The token of another peer, no token, and a certificate for another name than the token.
        let other = dialer(over, port, &ClientTls::new(&authority.identity("edge-2")).unwrap());
        for (dialer, expected) in [
            (with_token(dial(), token("edge-1")), "its token is not registered for this name"),
            (dial(), "the link has no credentials"),
            (with_token(other, token("edge-9")), "its certificate is for [edge-2]"),
        ] {
            let before = hub.stats().unauthenticated;
            let peer = Peer::builder(peer_id("edge-9")).dialer(dialer).start().unwrap();
            let refused = refusal(&peer).await;
            assert!(refused.contains(expected) && !refused.contains("s3cret"), "{over:?}: {refused}");
            assert!(hub.stats().unauthenticated > before, "counted");
            peer.close().await;
        }

        // A new token is valid as soon as the file is checked, and the old one is not any more.
        let watch = FileWatch::new().tokens(&known);
        assert_eq!(watch.check(SystemTime::now()), []);
        files.write("tokens", format!("edge-9 {}\n", token_digest(&token("new"))));
        assert!(matches!(&watch.check(SystemTime::now())[..], [ReloadEvent::Reloaded { .. }]));
        let _late = connected("edge-9", with_token(dial(), token("new"))).await;
        let old = Peer::builder(peer_id("edge-1"));
        let old = old.dialer(with_token(dial(), token("edge-1"))).start().unwrap();
        assert!(refusal(&old).await.contains("its token is not registered for this name"));
        assert!(hub.peers().iter().any(|info| info.peer == peer_id("edge-1")), "the open link stays open");
    }
}

#[tokio::test]
async fn sends_tokens_on_open_links_only_if_insecure() {
    let (listener, to) = ends::ws(None).await;
    let port = to.port();
    let hub = token_hub(Always).listener(listener).start().unwrap();
    let plain = || ends::dial_ws(port, None);

    let peer = Peer::builder(peer_id("edge-1")).dialer(with_token(plain(), token("edge-1"))).start().unwrap();
    let refused = refusal(&peer).await;
    assert!(refused.contains("the token is not sent"), "{refused}");
    assert_eq!(hub.stats().unauthenticated, 0, "the hub saw no hello");

    // The hub reports that a token sent in clear text is compromised.
    let forced = DialOptions::default().token(token("edge-1")).insecure(true).with_token(plain());
    let peer = Peer::builder(peer_id("edge-1")).dialer(forced).start().unwrap();
    let refused = refusal(&peer).await;
    assert!(refused.contains("replace that token") && !refused.contains("s3cret"), "{refused}");
}

/// Accepts every token.
struct Always;

#[async_trait::async_trait]
impl TokenVerifier for Always {
    async fn check(&self, _: &edge_transport::PeerId, _: &Token) -> Result<(), TokenRefused> {
        Ok(())
    }
}

#[tokio::test]
async fn unix_sockets_need_no_token() {
    struct Never;
    #[async_trait::async_trait]
    impl TokenVerifier for Never {
        async fn check(&self, _: &edge_transport::PeerId, _: &Token) -> Result<(), TokenRefused> {
            panic!("the kernel has authenticated the peer")
        }
    }
    let files = Files::new();
    let path = files.path("hub.sock");
    let listener = ends::uds(&path).await;
    let _hub = token_hub(Never).listener(listener).start().unwrap();
    let dial = ends::dial_uds(&path);
    let _edge = connected("edge-1", with_token(dial, token("edge-1"))).await;
}

/// Sends and receives single frames.
struct Raw(Link);

impl Raw {
    async fn send(&mut self, frame: Frame) {
        self.0.send(frame::encode(frame, Lane::Control)).await.unwrap();
    }

    async fn receive(&mut self) -> Option<Frame> {
        loop {
            let bytes = timeout(TIMEOUT, self.0.next()).await.unwrap()?.ok()?;
            match frame::decode(bytes, usize::MAX).unwrap() {
                Frame { kind: Kind::Ping { .. }, .. } => {}
                frame => return Some(frame),
            }
        }
    }

    async fn hello(dialer: Box<dyn Dialer>, name: &str) -> Self {
        let mut raw = Self(dialer.dial().await.unwrap());
        raw.send(Frame::link(Kind::Hello(Hello::new(peer_id(name), SessionId { instance: 1, number: 1 }))))
            .await;
        raw
    }
}

/// Agent B replies to agent A's call: the reply is refused and counted, and A's own reply arrives.
#[tokio::test]
async fn refuses_and_counts_replies_from_another_node() {
    for over in BOTH {
        let authority = Authority::new();
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
        let (listener, port) = listen(over, tls).await;
        let hub = Hub::builder().listener(listener).start().unwrap();
        let dial = |name: &str| dialer(over, port, &ClientTls::new(&authority.identity(name)).unwrap());
        let mut proxy = Raw::hello(dial("proxy"), "proxy").await;
        let mut edge = Raw::hello(dial("edge-a"), "edge-a").await;
        let mut mallory = Raw::hello(dial("edge-b"), "edge-b").await;
        for raw in [&mut proxy, &mut edge, &mut mallory] {
            assert!(matches!(raw.receive().await.unwrap().kind, Kind::Hello(_)), "{over:?}");
        }

        let mut request = Request::new(service_name("echo"), Bytes::from("x"));
        request.credit = 1;
        proxy.send(Frame::call(None, Some(peer_id("edge-a")), 1, Part::Request(request))).await;
        edge.receive().await.unwrap();
        let reply = |source: Option<&str>, text: &'static str| {
            let mut reply = Reply::new(1);
            reply.message = Some(Bytes::from(text));
            reply.end = Some(End::Finished(Bytes::new()));
            Frame::call(source.map(peer_id), None, 1, Part::Reply(reply))
        };
        // In its own name, and in the name of the target.
        mallory.send(reply(None, "false")).await;
        mallory.send(reply(Some("edge-a"), "false")).await;
        timeout(TIMEOUT, async {
            while (hub.stats().unknown_calls, hub.stats().spoofed) != (1, 1) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        edge.send(reply(None, "true")).await;
        let got = proxy.receive().await.unwrap();
        assert_eq!(got.source, Some(peer_id("edge-a")));
        assert!(
            matches!(&got.kind, Kind::Call(_, Part::Reply(reply)) if reply.message == Some(Bytes::from("true"))),
            "{over:?}: {got:?}"
        );
    }
}

/// Agent B claims A's name with B's certificate: refused and counted, and A is not affected.
#[tokio::test]
async fn refuses_and_counts_nodes_with_another_name() {
    for over in BOTH {
        let authority = Authority::new();
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
        let (listener, port) = listen(over, tls).await;
        let hub = Hub::builder().listener(listener).start().unwrap();
        let dial = |name: &str| dialer(over, port, &ClientTls::new(&authority.identity(name)).unwrap());
        let edge = connected("edge-a", dial("edge-a")).await;
        let proxy = Peer::builder(peer_id("proxy")).dialer(dial("proxy")).start().unwrap();
        timeout(TIMEOUT, proxy.connected()).await.unwrap().unwrap();

        let mallory = Peer::builder(peer_id("edge-a")).dialer(dial("edge-b"));
        let refused = refusal(&mallory.start().unwrap()).await;
        assert!(refused.contains("its certificate is for [edge-b]"), "{over:?}: {refused}");
        assert!(hub.stats().unauthenticated >= 1);
        assert_eq!(hub.stats().fenced, 0);
        assert!(edge.state().is_connected());
        assert!(collect(proxy.call(peer_id("edge-a"), echo("x")).await.unwrap()).await.1.is_ok());
    }
}

#[tokio::test]
async fn nodes_may_not_call_by_default() {
    let (listener, dial) = edge_transport::link::memory::listen("hub", 1 << 20);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().start().unwrap();
    let (one, _two) = (
        connected("edge-1", Box::new(dial.clone())).await,
        connected("edge-2", Box::new(dial.clone())).await,
    );
    assert_eq!(
        collect(one.call(peer_id("edge-2"), echo("x")).await.unwrap()).await.1,
        Err(Reason::Forbidden)
    );
    assert_eq!(hub.stats().forbidden, 1);
    let proxy = Peer::builder(peer_id("proxy")).dialer(Box::new(dial)).start().unwrap();
    proxy.connected().await.unwrap();
    assert!(collect(proxy.call(peer_id("edge-2"), echo("x")).await.unwrap()).await.1.is_ok());
}

/// A hub and an agent whose certificates come from files.
struct Renewal {
    over: Over,
    hub_files: Files,
    edge_files: Files,
    hub: Hub,
    port: u16,
    client: ClientTls,
    watch: Arc<FileWatch>,
}

impl Renewal {
    async fn new(over: Over, authority: &Authority) -> Self {
        let (hub_files, edge_files) = (Files::new(), Files::new());
        hub_files.write_pair(&authority.issue("hub"));
        hub_files.write("ca.pem", authority.pem());
        edge_files.write_pair(&authority.issue("edge-1"));
        edge_files.write("ca.pem", authority.pem());
        let server = ServerTls::open(hub_files.paths(), ClientAuth::Required).unwrap();
        let client = ClientTls::open(edge_files.paths()).unwrap();
        let watch = Arc::new(FileWatch::new().server(&server).client(&client));
        let (listener, port) = listen(over, server).await;
        let hub = Hub::builder().listener(listener).start().unwrap();
        Self { over, hub_files, edge_files, hub, port, client, watch }
    }

    fn dialer(&self) -> Box<dyn Dialer> {
        dialer(self.over, self.port, &self.client)
    }

    fn check(&self) -> Vec<ReloadEvent> {
        self.watch.check(SystemTime::now())
    }
}

#[tokio::test]
async fn reloads_certificates_and_keeps_open_links() {
    for over in BOTH {
        let (old, new) = (Authority::new(), Authority::new());
        let net = Renewal::new(over, &old).await;
        assert_eq!(net.check(), []);
        let edge = connected("edge-1", net.dialer()).await;
        let PeerState::Connected { since, .. } = edge.state() else { panic!("{:?}", edge.state()) };
        let proxy_tls = ClientTls::new(&old.identity("proxy")).unwrap();
        let proxy = Peer::builder(peer_id("proxy")).dialer(dialer(over, net.port, &proxy_tls));
        let proxy = proxy.start().unwrap();
        timeout(TIMEOUT, proxy.connected()).await.unwrap().unwrap();

        // The hub changes to another authority: new handshakes with old certificates fail.
        net.hub_files.write_pair(&new.issue("hub"));
        net.hub_files.write("ca.pem", new.pem());
        assert!(matches!(&net.check()[..], [ReloadEvent::Reloaded { .. }]), "{over:?}");
        net.dialer().dial().await.unwrap_err();
        assert!(collect(proxy.call(peer_id("edge-1"), echo("x")).await.unwrap()).await.1.is_ok(), "{over:?}");
        assert!(matches!(edge.state(), PeerState::Connected { since: still, .. } if still == since));

        // The agent reloads, too; the same dialer presents the new certificate.
        net.edge_files.write_pair(&new.issue("edge-2"));
        net.edge_files.write("ca.pem", new.pem());
        assert!(matches!(&net.check()[..], [ReloadEvent::Reloaded { .. }]), "{over:?}");
        let later = connected("edge-2", net.dialer()).await;
        assert!(later.state().is_connected());
        assert_eq!(net.hub.stats().peers, 3);
    }
}

#[tokio::test]
async fn reports_invalid_files_once_and_keeps_the_old_ones() {
    for over in BOTH {
        let authority = Authority::new();
        let net = Renewal::new(over, &authority).await;
        let (good, other) = (authority.issue("hub"), authority.issue("hub"));
        let expired = authority.issue_until("hub", 2001);
        for (certificate, key, expected) in [
            ("garbage".to_owned(), good.key.clone(), "no certificate in"),
            (good.certificate.clone(), "garbage".to_owned(), "no private key in"),
            (good.certificate.clone(), other.key.clone(), "does not belong to the certificate"),
            (expired.certificate.clone(), expired.key.clone(), "expired"),
        ] {
            net.hub_files.write("cert.pem", certificate);
            net.hub_files.write("key.pem", &key);
            match &net.check()[..] {
                [ReloadEvent::Invalid { cause, files }] => {
                    assert!(cause.contains(expected) && files.contains("cert.pem"), "{cause}");
                    assert!(!cause.contains("PRIVATE KEY-"), "{cause}");
                }
                other => panic!("{expected}: {other:?}"),
            }
            assert_eq!(net.check(), [], "reported once");
            net.dialer().dial().await.unwrap();
        }
        net.hub_files.write_pair(&good);
        assert!(matches!(&net.check()[..], [ReloadEvent::Reloaded { .. }]));
        net.dialer().dial().await.unwrap();
    }
}

#[test]
fn reports_expiry_of_each_certificate_file() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (authority, files) = (Authority::new(), Files::new());
    files.write_pair(&authority.issue_until("edge-1", 2040));
    files.write("ca.pem", authority.pem());
    let tls = ClientTls::open(files.paths()).unwrap();
    let watch = FileWatch::new().client(&tls);
    let end = tls.identity().unwrap().unwrap().expires().unwrap();
    assert!(watch.check(end - 31 * DAY).is_empty());
    let soon = watch.check(end - 30 * DAY);
    let file = files.path("cert.pem");
    assert_eq!(soon, [ReloadEvent::Expiring { file: file.clone(), left: 30 * DAY }]);
    assert!(watch.check(end - 30 * DAY).is_empty(), "once a day");
    assert_eq!(watch.check(end), [ReloadEvent::Expired { file, ago: Duration::ZERO }]);
}

/// Never completes a verification.
struct Silent {
    asked: Arc<tokio::sync::Notify>,
}

#[async_trait::async_trait]
impl TokenVerifier for Silent {
    async fn check(&self, _: &edge_transport::PeerId, _: &Token) -> Result<(), TokenRefused> {
        self.asked.notify_one();
        std::future::pending().await
    }
}

fn one_handshake() -> edge_transport::advanced::HubSettings {
    let mut settings = edge_transport::advanced::HubSettings::default();
    (settings.max_handshakes, settings.handshake_backlog) = (1, 0);
    settings
}

const BUSY: &str = "the hub is overloaded; try again later";

#[tokio::test]
async fn overloaded_hub_rejects_before_the_handshake() {
    for over in BOTH {
        let authority = Authority::new();
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Optional).unwrap();
        let (listener, port) = listen(over, tls).await;
        let asked = Arc::new(tokio::sync::Notify::new());
        let hub =
            token_hub(Silent { asked: Arc::clone(&asked) }).settings(one_handshake()).listener(listener);
        let hub = hub.start().unwrap();
        let anonymous = Identity::without_certificate(authority.pem().as_bytes()).unwrap();
        let dial = dialer(over, port, &ClientTls::new(&anonymous).unwrap());
        let first = Peer::builder(peer_id("first")).dialer(with_token(dial, token("first"))).start().unwrap();
        asked.notified().await;

        let second = dialer(over, port, &ClientTls::new(&authority.identity("second")).unwrap());
        let error = second.dial().await.unwrap_err().to_string();
        assert!(error.contains(BUSY), "{over:?}: {error}");
        assert_eq!(hub.stats().rejected, 1);
        first.close().await;
    }
}

#[tokio::test]
async fn overloaded_hub_answers_plain_websockets_with_503() {
    let (listener, address) = ends::ws(None).await;
    let hub = Hub::builder().listener(listener).settings(one_handshake()).allow_unauthenticated();
    let hub = hub.start().unwrap();
    // One byte of a request takes the only slot.
    let mut first = tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut first, b"G").await.unwrap();
    let dialer = ends::dial_ws(address.port(), None);
    let error = dialer.dial().await.unwrap_err().to_string();
    assert!(error.contains(BUSY), "{error}");
    assert_eq!(hub.stats().rejected, 1);
}

/// Waits until the hub has no peer.
async fn all_closed(hub: &Hub) {
    let mut events = hub.presence();
    while hub.stats().peers > 0 {
        timeout(TIMEOUT, events.recv()).await.unwrap().unwrap();
    }
}

/// A denied peer is refused, and its open session ends after the list is reloaded; others stay.
#[tokio::test]
async fn deny_list_ends_sessions_and_refuses_new_ones() {
    for over in BOTH {
        let (authority, files) = (Authority::new(), Files::new());
        let path = files.write("deny", "# none yet\n");
        let list = DenyList::open(&path).unwrap();
        let watch = FileWatch::new().deny(&list);
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
        let (listener, port) = listen(over, tls).await;
        let hub = Hub::builder().listener(listener).deny(list.clone()).start().unwrap();
        let identity = authority.identity("edge-1");
        let dial = || dialer(over, port, &ClientTls::new(&identity).unwrap());
        let edge = connected("edge-1", dial()).await;

        // An invalid list changes nothing.
        files.write("deny", "edge 1\n");
        assert!(matches!(&watch.check(SystemTime::now())[..], [ReloadEvent::Invalid { .. }]));
        assert_eq!((list.entries(), edge.state().is_connected()), (0, true));

        files.write("deny", "edge-1\n");
        assert!(matches!(&watch.check(SystemTime::now())[..], [ReloadEvent::Reloaded { .. }]));
        let refused = |state: &PeerState| match state {
            PeerState::Connecting { last_error: Some(cause), .. } => cause.contains("deny list"),
            _ => false,
        };
        timeout(TIMEOUT, edge.watch().wait_for(refused)).await.unwrap().unwrap();
        all_closed(&hub).await;
        assert!(hub.stats().unauthenticated > 0, "{over:?}");

        files.write("deny", "edge-2\nserial:01\n");
        watch.check(SystemTime::now());
        timeout(TIMEOUT, edge.connected()).await.unwrap().unwrap();
    }
}

/// A hub that drains still ends the sessions that a reloaded list denies, and waits for the others.
#[tokio::test]
async fn draining_hub_ends_denied_sessions() {
    let (authority, files) = (Authority::new(), Files::new());
    let list = DenyList::open(files.write("deny", "")).unwrap();
    let watch = FileWatch::new().deny(&list);
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (listener, port) = listen(Over::Wss, tls).await;
    let mut settings = edge_transport::advanced::HubSettings::default();
    settings.session.drain_timeout = TIMEOUT;
    let hub = Hub::builder().listener(listener).deny(list).settings(settings).start().unwrap();
    let dial = |name: &str| dialer(Over::Wss, port, &ClientTls::new(&authority.identity(name)).unwrap());
    let mut calls = Vec::new();
    let proxy = Peer::builder(peer_id("proxy")).dialer(dial("proxy")).start().unwrap();
    timeout(TIMEOUT, proxy.connected()).await.unwrap().unwrap();
    let mut edges = Vec::new();
    for name in ["edge-1", "edge-2"] {
        let service = Echo::default();
        let edge = Peer::builder(peer_id(name)).dialer(dial(name));
        let edge = edge.service(service_name("echo"), service.clone()).start().unwrap();
        timeout(TIMEOUT, edge.connected()).await.unwrap().unwrap();
        calls.push(proxy.call(peer_id(name), echo("never")).await.unwrap());
        service.started.notified().await;
        edges.push((edge, service));
    }
    let draining = tokio::spawn({
        let hub = hub.clone();
        async move { hub.drain("update").await }
    });
    let mut state = proxy.watch();
    state.wait_for(|state| matches!(state, PeerState::Draining { .. })).await.unwrap();

    files.write("deny", "edge-1\n");
    assert!(matches!(&watch.check(SystemTime::now())[..], [ReloadEvent::Reloaded { .. }]));
    let (denied, other) = (calls.remove(0), calls.remove(0));
    assert_eq!(timeout(TIMEOUT / 2, collect(denied)).await.unwrap().1, Err(Reason::LinkLost));
    assert!(hub.stats().unauthenticated > 0 && !draining.is_finished());
    edges[1].1.release.notify_one();
    assert!(collect(other).await.1.is_ok());
    timeout(TIMEOUT / 2, draining).await.unwrap().unwrap();
}

/// A removed token ends its session; a token that stays keeps its own.
#[tokio::test]
async fn session_ends_when_its_token_is_removed() {
    for over in BOTH {
        let (authority, files) = (Authority::new(), Files::new());
        let line = |name: &str| format!("{name} {}\n", token_digest(&token(name)));
        let tokens = TokenFile::open(files.write("tokens", line("edge-1") + &line("edge-2"))).unwrap();
        let watch = FileWatch::new().tokens(&tokens);
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::None).unwrap();
        let (listener, port) = listen(over, tls).await;
        let hub = token_hub(tokens).listener(listener).start().unwrap();
        let anonymous = Identity::without_certificate(authority.pem().as_bytes()).unwrap();
        let dial = |name| with_token(dialer(over, port, &ClientTls::new(&anonymous).unwrap()), token(name));
        let (one, two) =
            (connected("edge-1", dial("edge-1")).await, connected("edge-2", dial("edge-2")).await);
        let PeerState::Connected { since, .. } = two.state() else { panic!("{:?}", two.state()) };

        files.write("tokens", line("edge-2"));
        watch.check(SystemTime::now());
        let refused = |state: &PeerState| match state {
            PeerState::Connecting { last_error: Some(cause), .. } => {
                cause.contains("token is not registered")
            }
            _ => false,
        };
        timeout(TIMEOUT, one.watch().wait_for(refused)).await.unwrap().unwrap();
        assert!(hub.stats().unauthenticated > 0, "{over:?}");
        assert!(matches!(two.state(), PeerState::Connected { since: still, .. } if still == since));
    }
}

/// The certificate expires while the session is open: the session ends.
#[tokio::test]
async fn session_ends_with_its_certificate() {
    for over in BOTH {
        let authority = Authority::new();
        let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
        let (listener, port) = listen(over, tls).await;
        let hub = Hub::builder().listener(listener).start().unwrap();
        let identity = authority.issue_for("edge-1", Duration::from_secs(3)).trusting(&authority);
        let edge = connected("edge-1", dialer(over, port, &ClientTls::new(&identity).unwrap())).await;
        let since = identity.expires().unwrap();
        let ended = |state: &PeerState| !state.is_connected();
        timeout(TIMEOUT, edge.watch().wait_for(ended)).await.unwrap().unwrap();
        assert!(SystemTime::now() >= since, "{over:?}");
        all_closed(&hub).await;
        // The peer dials again and resumes its TLS session: only a hub can refuse that.
        let refused = async {
            while hub.stats().unauthenticated < 2 {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, refused).await.unwrap();
        assert!(!edge.state().is_connected(), "{over:?}");
    }
}
