//! `-vv`: traces the calls that the hub forwards.
//!
//! The hub forwards frames without reading them. To find a call in its log by the id that proxy and agent log,
//! this listener decodes the header of each request for the CSI service, never the body. Without
//! `-vv` it is not installed.

use async_trait::async_trait;
use bytes::Bytes;
use csi_proxy::{CSI_SERVICE, Call};
use edge_transport::advanced::frame::{self, Frame, Kind, Part};
use edge_transport::link::{Incoming, LinkError, LinkKind, Listener, MAX_FRAME_CEILING};

/// Wraps a listener so that calls on its links are traced, if the log level is trace.
pub(super) fn traced(listener: Box<dyn Listener>) -> Box<dyn Listener> {
    if tracing::enabled!(tracing::Level::TRACE) { Box::new(Traced(listener)) } else { listener }
}

struct Traced(Box<dyn Listener>);

#[async_trait]
impl Listener for Traced {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        Ok(self.0.accept().await?.map(|link| {
            let remote = link.remote().to_owned();
            link.observe(move |bytes| trace_call(bytes.clone(), &remote))
        }))
    }

    fn kind(&self) -> LinkKind {
        self.0.kind()
    }

    fn local_address(&self) -> String {
        self.0.local_address()
    }
}

fn trace_call(bytes: Bytes, remote: &str) {
    let Ok(Frame { target: Some(target), kind: Kind::Call(_, Part::Request(request)), .. }) =
        frame::decode(bytes, MAX_FRAME_CEILING)
    else {
        return;
    };
    if request.service.as_str().split('/').next() != Some(CSI_SERVICE) {
        return;
    }
    if let Ok(call) = Call::decode(request.metadata, Bytes::new()) {
        let bytes = request.body.len();
        tracing::trace!(stage = "hub", call = %call.id, method = %call.method, from = remote, to = %target, bytes, "call");
    }
}
