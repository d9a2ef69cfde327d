//! Calls on one connection are independent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and a relay panics on purpose"
)]

mod common;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use common::{connect, driver_name, framed, in_time, node};
use csi_proto::csi::v1 as csi;
use csi_proxy::{Call, Endpoint, Fault, Outcome, Relay, Replies, Router, SocketAddress};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tonic::transport::Channel;
use tonic::{Code, Status};

type Controller = csi::controller_client::ControllerClient<Channel>;

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Began,
    Dropped,
}

/// Reports when a call begins and when it is dropped.
struct Open(mpsc::UnboundedSender<Event>);

impl Open {
    fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        events.send(Event::Began).unwrap();
        Self(events)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Fails at the end of a test.
        let _ = self.0.send(Event::Dropped);
    }
}

/// A relay whose behaviour depends on the method of the call.
struct Behaviour {
    answer: Arc<Notify>,
    events: mpsc::UnboundedSender<Event>,
}

#[async_trait::async_trait]
impl Relay for Behaviour {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        match call.method.as_str().rsplit('/').next() {
            Some("CreateVolume") => {
                let _open = Open::new(self.events.clone());
                self.answer.notified().await;
                Ok(Replies::unary(Bytes::new(), Outcome::ok()))
            }
            Some("ListVolumes") => {
                let _open = Open::new(self.events.clone());
                // Wakes its task on every poll, so that it is always ready to be polled.
                poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await
            }
            Some("DeleteVolume") => panic!("on purpose"),
            // The start-up calls of the endpoint.
            _ => Err(Fault::NodeOffline { node: call.node }),
        }
    }
}

/// An endpoint and one connection to it.
struct Fixture {
    client: Controller,
    answer: Arc<Notify>,
    events: mpsc::UnboundedReceiver<Event>,
    directory: TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let (answer, (sender, events)) = (Arc::new(Notify::new()), mpsc::unbounded_channel());
        let relay = Behaviour { answer: Arc::clone(&answer), events: sender };
        let endpoint = Endpoint::new(driver_name(), Router::fixed(node()), relay);
        endpoint.serve(SocketAddress::new(socket.to_str().unwrap()).unwrap()).await.unwrap();
        Self { client: Controller::new(connect(socket).await), answer, events, directory }
    }

    async fn event(&mut self) -> Event {
        in_time(self.events.recv()).await.unwrap()
    }

    /// A CreateVolume that waits for its answer.
    async fn create(&mut self) -> tokio::task::JoinHandle<Result<(), Status>> {
        let mut client = self.client.clone();
        let call = async move { client.create_volume(csi::CreateVolumeRequest::default()).await.map(drop) };
        let call = tokio::spawn(call);
        assert_eq!(self.event().await, Event::Began);
        call
    }
}

#[tokio::test]
async fn a_call_that_panics_ends_alone() {
    let mut fixture = Fixture::start().await;
    let open = fixture.create().await;
    let ended = in_time(fixture.client.delete_volume(csi::DeleteVolumeRequest::default())).await;
    // A final code would mean that nothing is running.
    assert_eq!(ended.unwrap_err().code(), Code::Cancelled);
    let next = fixture.create().await;
    fixture.answer.notify_waiters();
    for call in [open, next] {
        in_time(call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn busy_call_does_not_delay_others() {
    let mut fixture = Fixture::start().await;
    let mut client = fixture.client.clone();
    let busy = tokio::spawn(async move { client.list_volumes(csi::ListVolumesRequest::default()).await });
    assert_eq!(fixture.event().await, Event::Began);
    let call = fixture.create().await;
    fixture.answer.notify_waiters();
    in_time(call).await.unwrap().unwrap();
    busy.abort();
    assert_eq!(fixture.event().await, Event::Dropped);
    assert_eq!(fixture.event().await, Event::Dropped, "the busy call has ended with its stream");
}

#[tokio::test]
async fn lost_connection_drops_its_calls() {
    let mut fixture = Fixture::start().await;
    let socket = UnixStream::connect(fixture.directory.path().join("csi.sock")).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut calls = Vec::new();
    for _ in 0..2 {
        let request = http::Request::post("http://localhost/csi.v1.Controller/CreateVolume");
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let (response, mut body) = sender.send_request(request, false).unwrap();
        body.send_data(framed(&[]), true).unwrap();
        assert_eq!(fixture.event().await, Event::Began);
        calls.push((response, body));
    }
    // The socket closes, and no stream was reset.
    connection.abort();
    for _ in 0..2 {
        assert_eq!(fixture.event().await, Event::Dropped);
    }
}
