//! Links of an own kind: what peers and hubs believe of them depends on the stated protection, never on the kind.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::time::Duration;

use edge_transport::link::{
    Credentials, DEFAULT_MAX_FRAME, DialOptions, Dialer, Incoming, Link, LinkError, LinkKind, LinkSender,
    Protection, queue,
};
use edge_transport::token::{Token, TokenRefused, TokenVerifier};
use edge_transport::{ConnectError, Hub, Peer, PeerId, Refusal};
use tokio::io::duplex;

const KIND: LinkKind = LinkKind::custom("own-pipe");

/// The longest wait of a test; only a failure takes so long.
const BOUND: Duration = Duration::from_secs(20);

fn name(text: &str) -> PeerId {
    PeerId::new(text).unwrap()
}

/// Dials by creating both ends of a pipe.
struct Pipe {
    hub: LinkSender,
    /// What each end states, first the peer's.
    protection: [Protection; 2],
    /// What the hub's end states about the peer.
    credentials: Credentials,
}

#[async_trait::async_trait]
impl Dialer for Pipe {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (near, far) = duplex(1 << 16);
        let (max, [at_peer, at_hub]) = (DEFAULT_MAX_FRAME, self.protection);
        let far = Link::framed(far, KIND, "peer", self.credentials.clone(), max).with_protection(at_hub);
        let incoming = Incoming::new(std::future::ready(Ok(far)));
        self.hub.send(incoming).await.map_err(|_| LinkError::Lost)?;
        let near = Link::framed(near, KIND, "hub", Credentials::None, max);
        Ok(near.with_protection(at_peer))
    }

    fn address(&self) -> &str {
        "own-pipe://hub"
    }
}

struct AnyToken;

#[async_trait::async_trait]
impl TokenVerifier for AnyToken {
    async fn check(&self, _: &PeerId, _: &Token) -> Result<(), TokenRefused> {
        Ok(())
    }
}

/// Connects `edge-1`, with a token if `token` is set, and returns the refusal if there is one.
async fn connect(
    protection: [Protection; 2],
    credentials: Credentials,
    token: bool,
) -> Result<(), (Refusal, String)> {
    let (sender, listener) = queue(KIND, "own-pipe", 8);
    let hub = Hub::builder().listener(listener).token_verifier(AnyToken).start().unwrap();
    let mut dialer: Box<dyn Dialer> = Box::new(Pipe { hub: sender, protection, credentials });
    if token {
        let token = Token::new("0123456789abcdef").unwrap();
        dialer = DialOptions::default().token(token).with_token(dialer);
    }
    let peer = Peer::builder(name("edge-1")).dialer(dialer).start().unwrap();
    let connected = peer.connected_within(BOUND).await;
    hub.close().await;
    match connected {
        Err(ConnectError::Refused { refusal, cause }) => Err((refusal, cause)),
        other => other.map_err(|error| panic!("{error}")),
    }
}

/// Without protection, the peer sends no token, the hub accepts none, and credentials prove nothing. With protection, each
/// works over the same kind of link.
#[tokio::test]
async fn own_links_are_trusted_by_protection_alone() {
    let certificate = || Credentials::from(name("edge-1"));
    let root = Credentials::Process { uid: 0, gid: 0 };
    for protection in [Protection::Private, Protection::Verified] {
        connect([protection; 2], Credentials::None, true).await.unwrap();
        connect([protection; 2], certificate(), false).await.unwrap();
        connect([protection; 2], root.clone(), false).await.unwrap();
    }
    let (none, private) = (Protection::None, Protection::Private);
    for (protection, credentials, token, refusal, cause) in [
        ([none, private], Credentials::None, true, Refusal::Address, "the token is not sent"),
        ([Protection::Encrypted, private], Credentials::None, true, Refusal::Address, "is not verified"),
        ([private, none], Credentials::None, true, Refusal::Unauthenticated, "not encrypted"),
        ([private, none], certificate(), false, Refusal::Unauthenticated, "but no protection"),
        ([private, none], root, false, Refusal::Unauthenticated, "but no protection"),
        ([private; 2], Credentials::None, false, Refusal::Unauthenticated, "no credentials"),
    ] {
        let (found, text) = connect(protection, credentials, token).await.unwrap_err();
        assert!(found == refusal && found.is_permanent() && text.contains(cause), "{found:?} {text}");
    }
}

/// The second process of a name learns why it is refused; it is connected once the first one has ended.
#[tokio::test]
async fn a_name_in_use_is_a_typed_refusal() {
    let (sender, listener) = queue(KIND, "own-pipe", 8);
    let hub = Hub::builder().listener(listener).start().unwrap();
    let start = || {
        let (protection, credentials) = ([Protection::Private; 2], Credentials::from(name("csi-proxy")));
        let dialer = Box::new(Pipe { hub: sender.clone(), protection, credentials });
        Peer::builder(name("csi-proxy")).dialer(dialer).start().unwrap()
    };
    let first = start();
    first.connected_within(BOUND).await.unwrap();
    let second = start();
    let mut states = second.watch();
    let refused = |state: &edge_transport::PeerState| {
        matches!(state, edge_transport::PeerState::Connecting { refusal: Some(Refusal::NameInUse), .. })
    };
    tokio::time::timeout(BOUND, states.wait_for(refused)).await.unwrap().unwrap();
    let error = second.connected_within(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { refusal: Refusal::NameInUse, .. }), "{error}");
    assert!(error.to_string().contains("of_this_process") && !Refusal::NameInUse.is_permanent(), "{error}");
    first.close().await;
    second.connected_within(BOUND).await.unwrap();
    hub.close().await;
}

/// An address that does not answer ends the wait at its bound; its error has the address once.
#[tokio::test]
async fn an_unreachable_hub_ends_the_wait_at_its_bound() {
    let (sender, listener) = queue(KIND, "own-pipe", 8);
    drop(listener);
    let dialer = Pipe { hub: sender, protection: [Protection::None; 2], credentials: Credentials::None };
    let peer = Peer::builder(name("edge-1")).dialer(Box::new(dialer)).start().unwrap();
    let mut states = peer.watch();
    let failed = |state: &edge_transport::PeerState| {
        matches!(state, edge_transport::PeerState::Connecting { last_error: Some(_), .. })
    };
    tokio::time::timeout(BOUND, states.wait_for(failed)).await.unwrap().unwrap();
    let error = peer.connected_within(Duration::from_millis(1)).await.unwrap_err();
    let ConnectError::Unreachable { last_error: Some(cause), .. } = &error else { panic!("{error}") };
    assert_eq!(cause, "own-pipe://hub: connection lost");
    peer.close().await;
    assert_eq!(peer.connected_within(BOUND).await, Err(ConnectError::Closed));
}
