//! A hub behind an application of axum: peers connect to `/edge` of its port, and all other routes belong to the application.
//!
//! `cargo run -p embed --bin own_axum`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use edge_transport::link::{
    Credentials, DEFAULT_MAX_FRAME, DialOptions, Incoming, LinkError, LinkKind, LinkSender, queue, ws,
};
use edge_transport::{Hub, Peer, PeerId};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Connections that wait for the hub; the server refuses more.
const WAITING: usize = 128;

// ANCHOR: embed
async fn edge(
    State(hub): State<LinkSender>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut request: Request,
) -> Response {
    let response = match ws::upgrade_response(&request) {
        Ok(response) => response,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    // Runs once the hub has a handshake slot for this network; the hub drops it to refuse the connection.
    let handshake = async move {
        let remote = from.to_string();
        let failed =
            |cause: String| LinkError::Handshake { kind: LinkKind::WS, remote: remote.clone(), cause };
        let io = TokioIo::new(upgrade.await.map_err(|error| failed(error.to_string()))?);
        // A server with TLS states `Protection::Encrypted`, or `Verified` with the credentials of the client certificate.
        Ok(ws::accept(io, LinkKind::WS, &*remote, Credentials::None, DEFAULT_MAX_FRAME).await)
    };
    match hub.offer(Incoming::new(handshake).from_address(from.ip())) {
        Ok(()) => response,
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// Serves the application, and the hub at the other end of the queue.
async fn serve(server: TcpListener, hub: LinkSender) -> std::io::Result<()> {
    let application = Router::new()
        .route("/edge", get(edge))
        .with_state(hub)
        .fallback(async || "the rest of the application\n")
        .into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(server, application).await
}
// ANCHOR_END: embed

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let address = server.local_addr()?;
    let (sender, listener) = queue(LinkKind::WS, format!("ws://{address}/edge"), WAITING);
    // Without TLS nothing proves a name; for this example only.
    let hub = Hub::builder().listener(listener).allow_unauthenticated().start()?;
    tokio::spawn(serve(server, sender));

    let edge = format!("ws://{address}/edge").parse()?;
    let peer = Peer::builder(PeerId::of_this_process("node")?).dial(edge, DialOptions::default())?.start()?;
    peer.connected_within(Duration::from_secs(5)).await?;
    println!(
        "the hub has {} peer of this process",
        hub.peers().iter().filter(|at| at.peer == *peer.name()).count()
    );

    for path in ["/", "/edge"] {
        let mut other = TcpStream::connect(address).await?;
        other.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut response = String::new();
        other.read_to_string(&mut response).await?;
        let status = response.split(' ').nth(1).unwrap_or_default();
        println!("{path} without an upgrade: {status}, {}", response.lines().last().unwrap_or_default());
    }

    peer.close().await;
    hub.close().await;
    Ok(())
}
