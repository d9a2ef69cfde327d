//! A hub behind an HTTP server that exists already, here hyper: peers connect to `/edge` of its port, and all other paths
//! belong to the server. `own_axum.rs` is the same with axum.
//!
//! `cargo run -p embed --bin own_server`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use edge_transport::link::{
    Credentials, DEFAULT_MAX_FRAME, DialOptions, Incoming, LinkError, LinkKind, LinkSender, queue, ws,
};
use edge_transport::{Hub, Peer, PeerId};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Connections that wait for the hub; the server refuses more.
const WAITING: usize = 128;

fn answer(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(format!("{text}\n"));
    *response.status_mut() = status;
    response
}

fn handle(
    hub: &LinkSender,
    from: SocketAddr,
    mut request: Request<hyper::body::Incoming>,
) -> Response<String> {
    if request.uri().path() != "/edge" {
        return answer(StatusCode::OK, "the rest of the server");
    }
    let response = match ws::upgrade_response(&request) {
        Ok(response) => response,
        Err(error) => return answer(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    // Runs once the hub has a handshake slot for this network; the hub drops it to refuse the connection.
    let handshake = async move {
        let remote = from.to_string();
        let failed =
            |cause: String| LinkError::Handshake { kind: LinkKind::WS, remote: remote.clone(), cause };
        let upgraded = upgrade.await.map_err(|error| failed(error.to_string()))?;
        let (io, none) = (TokioIo::new(upgraded), Credentials::None);
        // A server with TLS states `Protection::Encrypted`, or `Verified` with the credentials of the client certificate.
        Ok(ws::accept(io, LinkKind::WS, &*remote, none, DEFAULT_MAX_FRAME).await)
    };
    match hub.offer(Incoming::new(handshake).from_address(from.ip())) {
        Ok(()) => response,
        Err(error) => answer(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

async fn serve(listener: TcpListener, hub: LinkSender) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // A lost connection, or no descriptor is free.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let hub = hub.clone();
        let service = service_fn(move |request| {
            let response = handle(&hub, from, request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service).with_upgrades());
    }
}

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

    let mut other = TcpStream::connect(address).await?;
    other.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut response = String::new();
    other.read_to_string(&mut response).await?;
    println!("/ is {}", response.lines().last().unwrap_or_default());

    peer.close().await;
    hub.close().await;
    Ok(())
}
