//! The remaining time of the caller decreases at each stage, and does not limit the work of a driver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::{driver_name, framed, node, raw_call};
use csi_proxy::{Call, CallId, Endpoint, Fault, MethodPath, Outcome, Relay, Replies, Router, SocketAddress};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";

/// Records the remaining time of each call.
#[derive(Clone, Default)]
struct Remaining(Arc<Mutex<Vec<Option<Duration>>>>);

impl Remaining {
    fn last(&self) -> Duration {
        self.0.lock().unwrap().last().unwrap().unwrap()
    }
}

#[async_trait]
impl Relay for Remaining {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if call.method.as_str() == CREATE {
            self.0.lock().unwrap().push(call.remaining);
        }
        Ok(Replies::unary("answer", Outcome::ok()))
    }
}

#[tokio::test]
async fn remaining_time_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let relay = Remaining::default();
    let endpoint = Endpoint::new(driver_name(), Router::fixed(node()), relay.clone());
    let serving = endpoint.serve(SocketAddress::new(socket.to_str().unwrap()).unwrap()).await.unwrap();
    let given = Duration::from_secs(10);
    let seen = raw_call(&socket, CREATE, &[("grpc-timeout", "10S")], framed(&[])).await.unwrap();
    assert_eq!(seen.code(), Some(0), "{seen:?}");
    let left = relay.last();
    assert!(left < given && left > Duration::ZERO, "{left:?}");
    serving.shutdown(Duration::ZERO).await;
}

/// The header of a call contains a duration, not a time, so that the clocks of the hosts may differ.
#[test]
fn header_has_the_remaining_time_only() {
    let header = |remaining| {
        let id = CallId::from_bytes([7; 16]);
        let call = Call::new(id, node(), driver_name(), MethodPath::new(CREATE).unwrap(), Bytes::new());
        call.with_remaining(remaining).encode_header()
    };
    let before = header(Duration::from_secs(10));
    std::thread::yield_now();
    assert_eq!(header(Duration::from_secs(10)), before);
    let back = Call::decode(header(Duration::from_millis(1500)), Bytes::new()).unwrap();
    assert_eq!(back.remaining, Some(Duration::from_millis(1500)));
}
