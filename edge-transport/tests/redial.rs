//! The reconnect delay after a link has ended.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod session_common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use edge_transport::Peer;
use edge_transport::advanced::frame::{Frame, Kind, encode};
use edge_transport::link::{Dialer, Lane, Link, LinkError, Listener};
use futures_util::{SinkExt, StreamExt};
use session_common::cuttable::Cuttable;
use session_common::raw::hello;
use session_common::{listen, net, peer_id};
use tokio::time::{Instant, sleep, timeout};

/// A dialer that fails in two of three attempts.
struct FlakyDialer {
    inner: Cuttable,
    attempts: AtomicUsize,
}

#[async_trait::async_trait]
impl Dialer for FlakyDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        match self.attempts.fetch_add(1, Ordering::SeqCst) % 3 {
            2 => self.inner.dial().await,
            _ => Err(LinkError::Lost),
        }
    }

    fn address(&self) -> &str {
        self.inner.address()
    }
}

/// Calls wait 5 s for a peer that lost its link: a series of links of half a second each must not delay a reconnect that long.
#[tokio::test(start_paused = true)]
async fn reconnects_soon_after_short_links() {
    let net = net();
    let cuttable = Cuttable::new(net.dialer.clone());
    let dialer = FlakyDialer { inner: cuttable.clone(), attempts: AtomicUsize::new(0) };
    let peer = Peer::builder(peer_id("edge-1")).dialer(Box::new(dialer)).seed(7).start().unwrap();
    let mut state = peer.watch();
    for link in 0..50 {
        let before = Instant::now();
        peer.connected().await.unwrap();
        assert!(before.elapsed() <= Duration::from_secs(1), "link {link}: {:?}", before.elapsed());
        // Every third link is cut as soon as it is established.
        sleep(Duration::from_millis(if link % 3 == 0 { 0 } else { 500 })).await;
        cuttable.cut();
        state.wait_for(|state| !state.is_connected()).await.unwrap();
    }
}

/// Returns how often a peer dials within ten minutes if the hub ends each link with `end`.
async fn links_in_ten_minutes(end: impl AsyncFn(&mut Link)) -> usize {
    let (mut listener, dialer) = listen();
    let _peer = Peer::builder(peer_id("edge-1")).dialer(Box::new(dialer)).seed(7).start().unwrap();
    let mut links = 0;
    let count = async {
        loop {
            let mut link = listener.accept().await.unwrap().await.unwrap();
            links += 1;
            assert!(link.next().await.unwrap().is_ok(), "a hello");
            end(&mut link).await;
        }
    };
    timeout(Duration::from_secs(600), count).await.unwrap_err();
    links
}

async fn send(link: &mut Link, kind: Kind) {
    link.send(encode(Frame::link(kind), Lane::Control)).await.unwrap();
}

/// The delay grows to 5 to 10 s, so that ten thousand peers of such a hub dial less than two thousand times per second.
#[tokio::test(start_paused = true)]
async fn backs_off_if_the_hub_closes_after_admission() {
    let links = links_in_ten_minutes(async |link| send(link, Kind::Hello(hello("hub", 1, 1, 1))).await).await;
    assert!((60..140).contains(&links), "{links} links");
}

#[tokio::test(start_paused = true)]
async fn backs_off_if_the_hub_refuses() {
    let links =
        links_in_ten_minutes(async |link| send(link, Kind::Drain { reason: "full".to_owned() }).await).await;
    assert!((60..140).contains(&links), "{links} links");
}
