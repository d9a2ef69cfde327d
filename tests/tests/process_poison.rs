//! An invalid call ends with an error, and does not end its link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use bytes::Bytes;
use csi_proxy::{CSI_SERVICE, Call, CallId, DriverName, MethodPath, NodeId};
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::{raw, wait};
use edge_transport::advanced::frame::{self, End, Frame, Hello, Kind, Part, Reply};
use edge_transport::link::{Address, DialOptions, Lane, Link, WireFrame};
use edge_transport::{PeerId, Request, ServiceName, SessionId};
use futures_util::{SinkExt, StreamExt};
use prost::Message;
use tonic::Code;

const CREATE: &str = "/csi.v1.Controller/CreateVolume";

/// Returns how often a process has connected to the hub.
fn connections(process: &Process) -> usize {
    process.log().matches("connected to the hub").count()
}

/// Creates and deletes volumes until it is stopped; returns their number. Every call must succeed.
fn other_calls(cluster: &TestCluster) -> (tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<usize>) {
    let socket = cluster.proxy_socket();
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let mut client = controller(&socket);
        let mut made = 0;
        while stopped.try_recv().is_err() {
            let request = within(wait::SOON, create_volume(&format!("healthy-{}", made % 5)));
            client.create_volume(request).await.unwrap_or_else(|status| panic!("after {made}: {status}"));
            made += 1;
        }
        made
    });
    (stop, task)
}

async fn poison_over(over: LinkKind) {
    let cluster = TestCluster::start(over).await;
    let (stop, others) = other_calls(&cluster);
    let with_parameters = |bytes: usize| {
        let mut request = create_volume("pvc-large");
        request.parameters.insert("blob".to_owned(), "p".repeat(bytes));
        request.encode_to_vec()
    };
    let whole = create_volume("pvc-cut").encode_to_vec();
    let cases: [(&str, &str, Vec<u8>); 3] = [
        ("5 MiB of parameters", CREATE, with_parameters(5 << 20)),
        ("an unknown method", "/csi.v1.Controller/ExplodeVolume", Vec::new()),
        ("an unknown service", "/poison.v9.Poison/Swallow", vec![0xff; 10]),
    ];
    for (what, path, body) in cases {
        // The error of the driver, for requests that can reach it.
        let relayed = raw::call(&cluster.proxy_socket(), path, body.clone()).await.unwrap_err();
        let own = raw::call(&cluster.driver_socket(), path, body).await.unwrap_err();
        assert_eq!((relayed.code(), relayed.message()), (own.code(), own.message()), "{what}");
    }
    // Whose volume cannot be read: such a call would run beside another on its volume.
    for body in [whole[..whole.len() - 3].to_vec(), vec![0xff; 1000]] {
        let refused = raw::call(&cluster.proxy_socket(), CREATE, body).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("not a protobuf message"), "{refused}");
    }
    let nameless = raw::call(&cluster.proxy_socket(), "/csi.v1.Controller", Vec::new()).await.unwrap_err();
    assert_eq!(nameless.code(), Code::Unimplemented, "{nameless}");
    let unsent = raw::call(&cluster.proxy_socket(), CREATE, with_parameters(9 << 20)).await.unwrap_err();
    assert_eq!(unsent.code(), Code::InvalidArgument, "{unsent}");
    let _ = stop.send(());
    assert!(others.await.unwrap() > 0);
    for process in [&cluster.proxy, &cluster.agent] {
        assert_eq!(connections(process.as_ref().unwrap()), 1, "the link was lost");
    }
}

/// Over a websocket: one error each, the link stays up and other calls continue.
#[tokio::test]
async fn invalid_calls_over_a_websocket_fail_alone() {
    poison_over(LinkKind::Ws).await;
}

/// Over QUIC.
#[tokio::test]
async fn invalid_calls_over_quic_fail_alone() {
    poison_over(LinkKind::Quic).await;
}

/// A peer that speaks the session protocol by hand.
struct Hand {
    link: Link,
    number: u64,
}

impl Hand {
    async fn at(cluster: &TestCluster) -> Self {
        let hub: Address = format!("unix://{}", cluster.path("hub.sock").display()).parse().unwrap();
        let mut link = hub.dialer(&DialOptions::default()).unwrap().dial().await.unwrap();
        let hello = Hello::new(PeerId::new("proxy/by-hand").unwrap(), SessionId { instance: 1, number: 1 });
        link.send(frame::encode(Frame::link(Kind::Hello(hello)), Lane::Control)).await.unwrap();
        let mut hand = Self { link, number: 0 };
        assert!(matches!(hand.receive().await.kind, Kind::Hello(_)));
        hand
    }

    async fn receive(&mut self) -> Frame {
        loop {
            let bytes = wait::within("the hub says something", self.link.next()).await.unwrap().unwrap();
            match frame::decode(bytes, usize::MAX).unwrap() {
                Frame { kind: Kind::Ping { .. }, .. } => {}
                frame => return frame,
            }
        }
    }

    async fn send(&mut self, head: Bytes) {
        self.link.send(WireFrame::new(Lane::Control, false, head, Bytes::new())).await.unwrap();
    }

    /// Calls the node with this header, and returns the result in the answer.
    async fn call(&mut self, header: Bytes, body: Vec<u8>) -> String {
        self.number += 1;
        let mut request = Request::new(ServiceName::new(CSI_SERVICE).unwrap(), body);
        (request.metadata, request.credit) = (header, 1 << 20);
        let target = Some(PeerId::new(NODE).unwrap());
        let frame = Frame::call(None, target, self.number, Part::Request(request));
        self.link.send(frame::encode(frame, Lane::Call(self.number))).await.unwrap();
        match self.receive().await.kind {
            Kind::Call(of, Part::Reply(Reply { end: Some(End::Finished(closing)), .. }))
                if of == self.number =>
            {
                csi_proxy::Outcome::decode(closing).map_or_else(
                    |error| error.to_string(),
                    |outcome| format!("{} {}", outcome.code, outcome.message),
                )
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Frames of unknown kinds, junk, and a call whose header cannot be decoded do not end the link: it then carries a
/// call.
#[tokio::test]
async fn invalid_frames_cost_at_most_their_call() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let (stop, others) = other_calls(&cluster);
    let mut hand = Hand::at(&cluster).await;
    // A header with field 99, a length of zero, a truncated header, and junk.
    for junk in [&b"\x04\x9a\x06\x01\x01"[..], b"\x00", b"\x05abc", b"\x7f\xff\xff\xff\xff", b"\xff"] {
        hand.send(Bytes::from_static(junk)).await;
    }
    let junk = hand.call(Bytes::from_static(b"\xff\xff\xff"), Vec::new()).await;
    assert!(junk.starts_with("UNAVAILABLE"), "{junk}");
    let method = MethodPath::new(CREATE).unwrap();
    let (node, driver) = (NodeId::new(NODE).unwrap(), DriverName::new(DRIVER).unwrap());
    let call = |id| Call::new(id, node.clone(), driver.clone(), method.clone(), Bytes::new()).encode_header();
    let cut = hand.call(call(CallId::new()), vec![0x0a, 0x7f, 1]).await;
    assert!(!cut.starts_with("OK"), "{cut}");
    let good = hand.call(call(CallId::new()), create_volume("pvc-by-hand").encode_to_vec()).await;
    assert!(good.starts_with("OK"), "{good}");
    let _ = stop.send(());
    assert!(others.await.unwrap() > 0);
    for process in [&cluster.proxy, &cluster.agent] {
        assert_eq!(connections(process.as_ref().unwrap()), 1, "the link was lost");
    }
}
