//! One certificate or token is not admitted under any number of names.
#![cfg(feature = "ws")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod link_pki;
mod session_common;

use edge_transport::advanced::HubSettings;
use edge_transport::advanced::frame::Kind;
use edge_transport::hub::Rules;
use edge_transport::link::Dialer;
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls};
use edge_transport::token::{Token, TokenRefused, TokenVerifier};
use edge_transport::{Hub, PeerId};
use link_pki::Authority;
use session_common::raw::{Raw, hello};
use session_common::{listen, peer_id};

/// Connects to the hub and sends a hello.
async fn connect(dialer: &dyn Dialer, name: &str, session: u64, token: Option<&str>) -> Raw {
    let mut raw = Raw { link: dialer.dial().await.unwrap() };
    let mut hello = hello(name, session, 1, 1);
    hello.token = token.map(|token| Token::new(token).unwrap());
    raw.send(Kind::Hello(hello)).await;
    raw
}

async fn admitted(dialer: &dyn Dialer, name: &str, session: u64, token: Option<&str>) -> Raw {
    let mut raw = connect(dialer, name, session, token).await;
    assert!(matches!(raw.receive().await.unwrap().kind, Kind::Hello(_)), "{name}");
    raw
}

async fn refused(dialer: &dyn Dialer, name: &str, token: Option<&str>, limit: usize) {
    let reason = connect(dialer, name, 1, token).await.refusal().await;
    let expected = format!("the number of peers with one certificate or token reached its limit of {limit}");
    assert!(reason.contains(&expected), "{reason}");
}

fn settings() -> HubSettings {
    let mut settings = HubSettings::default();
    settings.max_peers_per_caller = 5;
    settings
}

/// The certificate of a node is admitted under three names, and that of a caller under as many as configured. A
/// newer session of an admitted name replaces the older one.
#[tokio::test]
async fn certificate_is_admitted_under_few_names() {
    let authority = Authority::new();
    let tls = ServerTls::new(&authority.identity("hub"), ClientAuth::Required).unwrap();
    let (listener, to) = ends::ws(Some(tls)).await;
    let port = to.port();
    let builder = Hub::builder().listener(listener).settings(settings());
    let hub = builder.policy(Rules::callers([peer_id("proxy")])).start().unwrap();
    let dialer = |name: &str| {
        let tls = ClientTls::new(&authority.identity(name)).unwrap();
        ends::dial_ws(port, Some(tls))
    };
    let node = dialer("edge-1");
    let mut links = Vec::new();
    for name in ["edge-1", "edge-1/0", "edge-1/1"] {
        links.push(admitted(&node, name, 1, None).await);
    }
    refused(&node, "edge-1/2", None, 3).await;
    links.push(admitted(&node, "edge-1/1", 2, None).await);
    refused(&node, "edge-1/2", None, 3).await;
    links.push(admitted(&dialer("edge-2"), "edge-2", 1, None).await);
    let proxy = dialer("proxy");
    for number in 0..5 {
        links.push(admitted(&proxy, &format!("proxy/{number}"), 1, None).await);
    }
    refused(&proxy, "proxy/5", None, 5).await;
    assert_eq!(hub.peers().len(), 9);
}

/// Accepts every token for every name.
struct AnyToken;

#[async_trait::async_trait]
impl TokenVerifier for AnyToken {
    async fn check(&self, _: &PeerId, _: &Token) -> Result<(), TokenRefused> {
        Ok(())
    }
}

/// The names that one token proves are limited together; another token has its own limit.
#[tokio::test]
async fn token_is_admitted_under_few_names() {
    let (listener, dialer) = listen();
    let builder = Hub::builder().listener(listener).settings(settings()).token_verifier(AnyToken);
    let _hub = builder.policy(Rules::callers([peer_id("proxy")])).start().unwrap();
    let (one, other) = (Some("one-token-of-a-node"), Some("other-token-of-a-node"));
    let mut links = Vec::new();
    for name in ["edge-1", "edge-1/0", "edge-1/1"] {
        links.push(admitted(&dialer, name, 1, one).await);
    }
    refused(&dialer, "edge-1/2", one, 3).await;
    links.push(admitted(&dialer, "edge-2", 1, other).await);
}
