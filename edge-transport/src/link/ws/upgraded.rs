//! Websockets that another HTTP server has upgraded, so that a hub can share port 443 with other services.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::http::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::meter::MeteredStream;
use super::stream::WsLink;
use super::{READ_BUFFER, config, handshake_failed};
use crate::link::{Credentials, Link, LinkError, LinkKind};

/// Creates the response that upgrades a request to a websocket, for any server with the types of the crate `http`, such as
/// hyper and axum. Send it, and pass the upgraded connection to [`accept`].
///
/// # Errors
/// If the request does not ask for a websocket: answer 400.
pub fn upgrade_response<B, R: Default>(request: &Request<B>) -> Result<Response<R>, LinkError> {
    create_response_with_body(request, R::default)
        .map_err(|error| handshake_failed(LinkKind::WS, "the client", error.to_string()))
}

/// Creates the link of a connection that an HTTP server has upgraded with [`upgrade_response`]. The server knows what protects
/// the connection and which certificate it has verified: give the credentials here, and state the protection with
/// [`Link::with_protection`]. `kind` and `remote` are for logs. A frame has at most `max_frame` bytes, from the first byte on.
///
/// Call it in the handshake of an [`Incoming`](crate::link::Incoming) and pass that to a [queue](crate::link::queue), so that
/// the hub limits the connections that wait for admission.
pub async fn accept(
    upgraded: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    kind: LinkKind,
    remote: impl Into<String>,
    credentials: Credentials,
    max_frame: usize,
) -> Link {
    let stream = MeteredStream::new(upgraded);
    let config = Some(config(max_frame, READ_BUFFER));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, config).await;
    Link::new(WsLink::new(socket, max_frame), kind, remote, credentials)
}
