//! The drivers of the nodes: gRPC on connections inside the process. A driver outlives its agent, and finishes its
//! executions.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use csi_proxy::{Connector, DriverName, SocketAddress};
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response};
use tokio::io::DuplexStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::answer::{Closing, Part, WATCH};
use crate::context::Context;
use crate::ids::{ExecutionId, InstanceId};
use crate::plan::{Place, driver_name};

/// The capacity of a connection's buffer, in bytes.
const PIPE: usize = 64 * 1024;

/// Codes of gRPC.
const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const INTERNAL: u32 = 13;

/// The state of a node's driver.
#[derive(Debug, Default)]
pub(crate) struct Vendor {
    /// The driver refuses connections before this instant.
    pub(crate) down: Option<Instant>,
    pub(crate) connections: Vec<(InstanceId, AbortHandle)>,
}

impl Vendor {
    /// Ends the connections of some agents, and forgets all connections that have ended.
    pub(crate) fn hang_up(&mut self, which: impl Fn(InstanceId) -> bool) {
        self.connections.retain(|(instance, connection)| {
            if which(*instance) {
                connection.abort();
            }
            !which(*instance) && !connection.is_finished()
        });
    }
}

/// Returns the name, the address and the connector of a driver for an agent's process.
pub(crate) fn connector(
    context: &Arc<Context>,
    place: Place,
    driver: usize,
    instance: InstanceId,
) -> Option<(DriverName, SocketAddress, Connector)> {
    let name = DriverName::new(driver_name(driver)).ok()?;
    let address = SocketAddress::new(format!("/sim/{driver}.sock")).ok()?;
    let context = Arc::clone(context);
    let connect = move || {
        if !context.is_alive(instance) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        if context.with(|inner| inner.vendor(place, driver).down.is_some_and(|until| until > Instant::now()))
        {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = tokio::io::duplex(PIPE);
        let serving = tokio::spawn(serve(Arc::clone(&context), place, driver, instance, far)).abort_handle();
        context.with(|inner| inner.vendor(place, driver).connections.push((instance, serving)));
        Ok(near)
    };
    Some((name, address, Connector::new(connect)))
}

async fn serve(context: Arc<Context>, place: Place, driver: usize, instance: InstanceId, far: DuplexStream) {
    let Ok(mut connection) = h2::server::handshake(far).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(Arc::clone(&context), place, driver, instance, request, respond));
    }
}

async fn answer(
    context: Arc<Context>,
    place: Place,
    driver: usize,
    instance: InstanceId,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let path = request.uri().path().to_owned();
    let Some(body) = read(request.into_body()).await else { return };
    match context.executes(place, driver, instance, &path, &body) {
        Some((execution, done)) => {
            tokio::time::sleep_until(done).await;
            answers(&context, execution, respond).await;
        }
        // The driver of an attacker, who may call it: the messages are larger than the credit of some calls.
        None if driver >= context.with(|inner| inner.plan.proxies) => {
            let messages = vec![Bytes::from_static(&[b'.'; 700]); if path == WATCH { 3 } else { 1 }];
            let _ = reply(respond, &messages, OK, "");
        }
        // A link corrupted the request.
        None => {
            let _ = reply(respond, &[], INVALID_ARGUMENT, "corrupted request");
        }
    }
}

/// Reads the message of a request. Returns `None` if the connection ends before the message.
async fn read(mut body: RecvStream) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.ok()?;
        let _ = body.flow_control().release_capacity(data.len());
        whole.extend_from_slice(&data);
    }
    (whole.len() >= 5).then(|| whole.freeze().slice(5..))
}

/// Ends an execution, and sends its answer.
async fn answers(context: &Arc<Context>, execution: ExecutionId, respond: SendResponse<Bytes>) {
    let Some((id, operation)) = context.executed(execution) else { return };
    let parts = if operation.fails { 0 } else { operation.messages };
    let messages: Vec<Bytes> =
        (1..=parts).map(|number| operation.message(Part { operation: id, execution, number })).collect();
    let code = if operation.fails { INTERNAL } else { OK };
    let text = Closing { operation: id, execution, messages: parts }.text();
    if reply(respond, &messages, code, &text).is_some() {
        context.answered(execution);
    }
}

fn reply(mut respond: SendResponse<Bytes>, messages: &[Bytes], code: u32, text: &str) -> Option<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(head, false).ok()?;
    for message in messages {
        let mut framed = BytesMut::with_capacity(message.len() + 5);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len()).ok()?);
        framed.extend_from_slice(message);
        stream.send_data(framed.freeze(), false).ok()?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    trailers.insert("grpc-message", HeaderValue::from_str(text).ok()?);
    stream.send_trailers(trailers).ok()
}

/// The time in which a driver answers a repeated operation.
pub(crate) const QUICK: Duration = Duration::from_millis(2);
