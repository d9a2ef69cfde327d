//! The service `volumes` of a session.

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::{PeerId, ReplySender, Service};
use prost::Message;
use volume_manager::message::answer::Kind;
use volume_manager::message::refusal::Reason;
use volume_manager::message::{Answer, Refusal, Request};

use super::NodeVolumes;
use crate::process::chain;

#[async_trait]
impl Service for NodeVolumes {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        // In a task of its own: a set is large, and the link does not wait for it.
        tokio::spawn(self.clone().tell(source, request.body, replies));
    }
}

impl NodeVolumes {
    async fn tell(self, source: PeerId, body: Bytes, mut replies: ReplySender) {
        let mut answers = self.answer(source, body).await;
        let Some(last) = answers.pop() else { return };
        for answer in answers {
            if replies.message(answer.encode_to_vec().into()).await.is_err() {
                return;
            }
        }
        // That the caller has left is its own business.
        let _ = replies.message_and_finish(last.encode_to_vec().into(), Bytes::new()).await;
    }

    async fn answer(&self, from: PeerId, body: Bytes) -> Vec<Answer> {
        let refusal = match Request::decode(&body) {
            Ok(Request::Desired(_)) if !self.0.peers_decide => {
                let text =
                    "the pods of this node decide (--kubelet-dir of the agent), and sets are not taken";
                Refusal::new(Reason::Invalid, text, self.shown().revision)
            }
            Ok(Request::Desired(set)) => {
                let revision = set.revision;
                match self.take(set, body).await {
                    Ok(reconciled) => {
                        let (wanted, released) = (reconciled.wanted, reconciled.released);
                        let refused = reconciled.refused.len();
                        tracing::info!(%from, revision, wanted, released, refused, "desired volumes taken");
                        return vec![Kind::Reconciled(reconciled).into()];
                    }
                    Err(refusal) => refusal,
                }
            }
            Ok(Request::Query) => match self.reports(None).await {
                Ok(reports) => return reports.parts(),
                Err(stopped) => Refusal::new(Reason::Unavailable, stopped, self.shown().revision),
            },
            Ok(_) => Refusal::new(Reason::Invalid, "this agent has no answer to it", self.shown().revision),
            Err(error) => Refusal::new(Reason::Invalid, chain(&error), self.shown().revision),
        };
        tracing::warn!(%from, reason = ?refusal.reason(), "request for volumes refused: {}", refusal.message);
        vec![Kind::Refusal(refusal).into()]
    }
}
