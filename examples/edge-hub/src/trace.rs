//! `-vv`: the hub as a hop of a call.
//!
//! The hub passes frames on without reading them, so it knows no CSI call. To find a call in its log by the id that the proxy
//! and the agent log, the links are watched: of each request for the CSI service the header is read, never the body. Without
//! `-vv` nothing of this is in the way.

use async_trait::async_trait;
use bytes::Bytes;
use csi_proxy::CSI_SERVICE;
use csi_proxy::Call;
use edge_transport::frame::{self, Frame, Kind, Part};
use edge_transport::link::{Incoming, Link, LinkError, LinkKind, Listener, MAX_FRAME_CEILING};
use futures_util::TryStreamExt;

/// The listener itself, or one that tells of the calls on its links if the log asks for that.
pub(super) fn watched(listener: Box<dyn Listener>) -> Box<dyn Listener> {
    if tracing::enabled!(tracing::Level::TRACE) { Box::new(Watched(listener)) } else { listener }
}

struct Watched(Box<dyn Listener>);

#[async_trait]
impl Listener for Watched {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        let incoming = self.0.accept().await?;
        Ok(Box::pin(async {
            let link = incoming.await?;
            let (kind, remote, credentials) =
                (link.kind(), link.remote().to_owned(), link.credentials().clone());
            let from = remote.clone();
            let watched = link.inspect_ok(move |bytes| tell(bytes.clone(), &from));
            Ok(Link::new(watched, kind, remote, credentials))
        }))
    }

    fn kind(&self) -> LinkKind {
        self.0.kind()
    }

    fn local_address(&self) -> String {
        self.0.local_address()
    }
}

fn tell(bytes: Bytes, remote: &str) {
    let Ok(Frame { target: Some(target), kind: Kind::Call(_, Part::Request(request)), .. }) =
        frame::decode(bytes, MAX_FRAME_CEILING)
    else {
        return;
    };
    if request.service.as_str() != CSI_SERVICE {
        return;
    }
    if let Ok(call) = Call::decode(request.metadata, Bytes::new()) {
        let bytes = request.body.len();
        tracing::trace!(hop = "hub", call = %call.id, method = %call.method, from = remote, to = %target, bytes, "call");
    }
}
