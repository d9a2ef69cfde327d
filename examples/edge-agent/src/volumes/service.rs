//! The service `volumes` of a session, and what root of the same host asks on a socket.

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::{PeerId, ReplySender, Service};
use prost::Message;
use volume_manager::message::answer::Kind;
use volume_manager::message::refusal::Reason;
use volume_manager::message::{Answer, Refusal, Request};

use super::NodeVolumes;
use edge_csi_common::process::chain;

/// The socket in the state directory. A question is a line, `volumes` or `explain ID`; the answer is an [`Answer`]
/// after its length.
pub(in super::super) const SOCKET: &str = "volumes.sock";

#[async_trait]
impl Service for NodeVolumes {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        // In a task of its own: a set is large, and the link does not wait for it.
        tokio::spawn(self.clone().handle(source, request.body, replies));
    }
}

impl NodeVolumes {
    async fn handle(self, source: PeerId, body: Bytes, mut replies: ReplySender) {
        let mut answers = self.answer(source, body).await;
        let Some(last) = answers.pop() else { return };
        for answer in answers {
            if replies.send(answer.encode_to_vec().into()).await.is_err() {
                return;
            }
        }
        // That the caller has left is its own business.
        let _ = replies.send_and_finish(last.encode_to_vec().into(), Bytes::new()).await;
    }

    /// Answers a question of the socket.
    pub(super) async fn answer_line(&self, line: &str) -> Answer {
        let reports = match line.split_once(' ').unwrap_or((line, "")) {
            ("volumes", "") => self.reports(None).await,
            ("explain", id) if !id.is_empty() => self.reports(Some(id)).await,
            _ => {
                let text = "ask with one line: volumes, or explain ID; the agent may be of another version";
                return Kind::Refusal(Refusal::new(Reason::Invalid, text, self.shown().revision)).into();
            }
        };
        match reports {
            Ok(reports) => Kind::Reports(reports).into(),
            Err(stopped) => {
                Kind::Refusal(Refusal::new(Reason::Unavailable, stopped, self.shown().revision)).into()
            }
        }
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
