//! How soon a peer dials again after its link ended.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod session_common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use edge_transport::Peer;
use edge_transport::frame::{Frame, Kind, Lane, encode};
use edge_transport::link::{Dialer, Link, LinkError, Listener};
use futures_util::{SinkExt, StreamExt};
use session_common::cuttable::Cuttable;
use session_common::raw::hello;
use session_common::{listen, net, peer_id};
use tokio::time::{Instant, sleep, timeout};

/// Two of three attempts find the hub out of reach.
struct Blinking {
    inner: Cuttable,
    attempts: AtomicUsize,
}

#[async_trait::async_trait]
impl Dialer for Blinking {
    async fn dial(&self) -> Result<Link, LinkError> {
        match self.attempts.fetch_add(1, Ordering::SeqCst) % 3 {
            2 => self.inner.dial().await,
            _ => Err(LinkError::Cut),
        }
    }

    fn address(&self) -> &str {
        self.inner.address()
    }
}

/// Calls wait for a peer that lost its link for 5 s: many links in a row, each of half a second, must not make it wait that long.
#[tokio::test(start_paused = true)]
async fn a_peer_whose_short_links_are_cut_dials_again_soon() {
    let net = net();
    let cuttable = Cuttable::new(net.dialer.clone());
    let dialer = Blinking { inner: cuttable.clone(), attempts: AtomicUsize::new(0) };
    let peer = Peer::builder(peer_id("edge-1")).dialer(Box::new(dialer)).seed(7).start().unwrap();
    let mut state = peer.watch();
    for link in 0..50 {
        let before = Instant::now();
        peer.connected().await.unwrap();
        assert!(before.elapsed() <= Duration::from_secs(1), "link {link}: {:?}", before.elapsed());
        // Every third link is cut as soon as it is there: a cut has no mercy on a link that was made in the moment before.
        sleep(Duration::from_millis(if link % 3 == 0 { 0 } else { 500 })).await;
        cuttable.cut();
        state.wait_for(|state| !state.is_connected()).await.unwrap();
    }
}

/// How often a peer dials a hub within ten minutes that ends each link at once, in this way.
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
    link.send(encode(Frame::hop(kind), Lane::Control)).await.unwrap();
}

/// The wait grows to 5 to 10 s, so that ten thousand peers of such a hub come to less than two thousand a second.
#[tokio::test(start_paused = true)]
async fn a_hub_that_admits_and_closes_at_once_is_dialled_less_often() {
    let links = links_in_ten_minutes(async |link| send(link, Kind::Hello(hello("hub", 1, 1, 1))).await).await;
    assert!((60..140).contains(&links), "{links} links");
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_refuses_is_dialled_less_often() {
    let links =
        links_in_ten_minutes(async |link| send(link, Kind::Drain { reason: "full".to_owned() }).await).await;
    assert!((60..140).contains(&links), "{links} links");
}
