//! What dialed links over QUIC allocate: each has a UDP socket of its own. The test is alone in its process, whose figures it
//! reads.

#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod ends;

use edge_transport::tls::{ClientTls, ServerTls};

const LINKS: usize = 16;

/// Maximum for both ends of a link.
const KIB_PER_LINK: usize = 512;

/// Writable memory of this process, in KiB, also if it is not in use.
fn allocated() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn dialed_links_over_quic_have_small_buffers() {
    let tls = ServerTls::insecure().unwrap();
    let (mut listener, address) = ends::quic(&tls).await;
    let dialer = ends::dial_quic(address.port(), &ClientTls::insecure(None).unwrap());
    let mut links = Vec::new();
    let mut before = 0;
    for _ in 0..=LINKS {
        let accepting = async { listener.accept().await?.await };
        links.push(tokio::try_join!(dialer.dial(), accepting).unwrap());
        // The first link allocates what is shared.
        if links.len() == 1 {
            before = allocated();
        }
    }
    let grown = allocated() - before;
    assert!(grown <= LINKS * KIB_PER_LINK, "{LINKS} links allocated {grown} KiB");
}
