//! Listeners and dialers of each kind on this host.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::net::SocketAddr;
use std::path::Path;

use edge_transport::link::{Address, DialOptions, Dialer, LinkError, ListenOptions, Listener};
#[cfg(feature = "tls")]
use edge_transport::tls::{ClientTls, ServerTls};

/// Listens on a free port, or on a path.
pub(crate) async fn listen(address: &str, options: &ListenOptions) -> Box<dyn Listener> {
    address.parse::<Address>().unwrap().listen(options).await.unwrap()
}

/// Listens with `wss`, or with `ws` without TLS.
#[cfg(feature = "tls")]
pub(crate) async fn ws(tls: Option<ServerTls>) -> (Box<dyn Listener>, SocketAddr) {
    let scheme = if tls.is_some() { "wss" } else { "ws" };
    let listener = listen(&format!("{scheme}://127.0.0.1:0"), &ListenOptions::default().tls(tls)).await;
    let address = socket_address(&*listener);
    (listener, address)
}

#[cfg(feature = "tls")]
pub(crate) async fn quic(tls: &ServerTls) -> (Box<dyn Listener>, SocketAddr) {
    let listener = listen("quic://127.0.0.1:0", &tls.into()).await;
    let address = socket_address(&*listener);
    (listener, address)
}

pub(crate) async fn uds(path: &Path) -> Box<dyn Listener> {
    listen(&format!("unix://{}", path.display()), &ListenOptions::default()).await
}

/// The bound address of a listener over a network.
pub(crate) fn socket_address(listener: &dyn Listener) -> SocketAddr {
    listener.local_address().split_once("://").unwrap().1.parse().unwrap()
}

pub(crate) fn dialer(address: &str, options: &DialOptions) -> Result<Box<dyn Dialer>, LinkError> {
    address.parse::<Address>()?.dialer(options)
}

/// Dials `wss`, or `ws` without TLS.
#[cfg(feature = "tls")]
pub(crate) fn dial_ws(port: u16, tls: Option<ClientTls>) -> Box<dyn Dialer> {
    let scheme = if tls.is_some() { "wss" } else { "ws" };
    dialer(&format!("{scheme}://127.0.0.1:{port}"), &DialOptions::default().tls(tls)).unwrap()
}

#[cfg(feature = "tls")]
pub(crate) fn dial_quic(port: u16, tls: &ClientTls) -> Box<dyn Dialer> {
    dialer(&format!("quic://127.0.0.1:{port}"), &tls.into()).unwrap()
}

pub(crate) fn dial_uds(path: &Path) -> Box<dyn Dialer> {
    dialer(&format!("unix://{}", path.display()), &DialOptions::default()).unwrap()
}
