//! Bounds the answers of nodes that this process decodes.

use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::Method;

use super::Relay;
use crate::call::{Call, Fault, Replies};

/// The maximum size of an answer in bytes. Typical answers have a few hundred.
const MAX_ANSWER: usize = 256 * 1024;

/// The maximum size of an answer with a list in bytes.
const MAX_LIST: usize = 2 << 20;

/// A relay to nodes for a caller that decodes the answers. A larger answer than its method needs becomes
/// [`Fault::ReplyTooLarge`] before it is decoded: one of 8 MB can have 4 million fields, and all nodes wait while they
/// are decoded.
///
/// Streams and unknown methods pass, since no caller decodes them.
pub(crate) struct BoundedAnswers<'a>(pub(crate) &'a dyn Relay);

#[async_trait]
impl Relay for BoundedAnswers<'_> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let Some(max) = Method::from_path(call.method.as_str()).and_then(max_answer) else {
            return self.0.relay(call).await;
        };
        let (message, outcome) = self.0.relay(call).await?.read_unary().await;
        match message.as_ref().map(Bytes::len) {
            Some(found) if found > max => Err(Fault::ReplyTooLarge { found: found as u64, max: max as u64 }),
            _ => Ok(Replies::whole(message, outcome)),
        }
    }
}

/// The maximum size of an answer in bytes; `None` for a stream.
fn max_answer(method: Method) -> Option<usize> {
    use Method as M;
    Some(match method {
        _ if method.is_server_streaming() => return None,
        M::ListVolumes | M::ListSnapshots | M::ControllerListVolumeHealth => MAX_LIST,
        // One snapshot for each volume of the group.
        M::CreateVolumeGroupSnapshot | M::GetVolumeGroupSnapshot => MAX_LIST,
        _ => MAX_ANSWER,
    })
}

#[cfg(test)]
mod tests {
    use csi_proto::DriverName;

    use super::*;
    use crate::call::{CallId, MethodPath, NodeId, Outcome, Reply};

    /// Answers every call with this many bytes.
    struct Answers(usize);

    #[async_trait]
    impl Relay for Answers {
        async fn relay(&self, _: Call) -> Result<Replies, Fault> {
            Ok(Replies::unary(vec![0; self.0], Outcome::ok()))
        }
    }

    async fn answer(path: &str, bytes: usize) -> Result<usize, Fault> {
        let (node, driver) = (NodeId::new("edge-1").unwrap(), DriverName::new("vendor").unwrap());
        let method = MethodPath::new(path).unwrap();
        let call = Call::new(CallId::new(), node, driver, method, Bytes::new());
        let mut replies = BoundedAnswers(&Answers(bytes)).relay(call).await?;
        let Some(Reply::Message(message)) = replies.next().await else { panic!("no message") };
        Ok(message.len())
    }

    #[tokio::test]
    async fn answer_above_the_bound_of_its_method_is_refused() {
        for method in Method::ALL.iter().filter(|method| !method.is_server_streaming()) {
            let max = max_answer(*method).unwrap();
            assert_eq!(answer(method.path(), max).await, Ok(max), "{method}");
            let found = max + 1;
            let expected = Fault::ReplyTooLarge { found: found as u64, max: max as u64 };
            assert_eq!(answer(method.path(), found).await, Err(expected), "{method}");
        }
        for passed in [Method::GetMetadataAllocated.path(), "/csi.v9.New/Thing"] {
            assert_eq!(answer(passed, MAX_LIST + 1).await, Ok(MAX_LIST + 1), "{passed}");
        }
    }
}
