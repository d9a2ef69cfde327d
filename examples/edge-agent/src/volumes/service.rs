//! The service `volumes` of a session, and the local socket for the subcommands.

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::{PeerId, ReplySender, Service};
use prost::Message;
use volume_manager::advanced::message::answer::Kind;
use volume_manager::advanced::message::refusal::Reason;
use volume_manager::advanced::message::{Answer, Refusal, Request};

use super::NodeVolumes;
use edge_csi_common::process::chain;

/// The name of the socket in the state directory. A request is a line, `volumes` or `explain ID`; the answer is an
/// [`Answer`] with a length prefix.
pub(in super::super) const SOCKET: &str = "volumes.sock";

#[async_trait]
impl Service for NodeVolumes {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        // A separate task, so that a large set does not block the link.
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
        // The caller may have cancelled the request.
        let _ = replies.send_and_finish(last.encode_to_vec().into(), Bytes::new()).await;
    }

    /// Answers a request on the socket.
    pub(super) async fn answer_line(&self, line: &str) -> Answer {
        let reports = match line.split_once(' ').unwrap_or((line, "")) {
            ("volumes", "") => self.reports(None).await,
            ("explain", id) if !id.is_empty() => self.reports(Some(id)).await,
            _ => {
                let text = "unknown request; expected one line: volumes, or explain ID; the agent may be of another version";
                return Kind::Refusal(Refusal::new(Reason::Invalid, text, self.summary().revision)).into();
            }
        };
        match reports {
            Ok(reports) => Kind::Reports(reports).into(),
            Err(stopped) => {
                Kind::Refusal(Refusal::new(Reason::Unavailable, stopped, self.summary().revision)).into()
            }
        }
    }

    async fn answer(&self, from: PeerId, body: Bytes) -> Vec<Answer> {
        let refusal = match Request::decode(&body) {
            Ok(Request::Desired(_)) if !self.0.accepts_peer_sets => {
                let text =
                    "desired sets are not accepted; the agent computes them from the pods (--kubelet-dir)";
                Refusal::new(Reason::Invalid, text, self.summary().revision)
            }
            Ok(Request::Desired(set)) => {
                let revision = set.revision;
                match self.apply(set, body).await {
                    Ok(reconciled) => {
                        let (wanted, released) = (reconciled.wanted, reconciled.released);
                        let refused = reconciled.refused.len();
                        tracing::info!(%from, revision, wanted, released, refused, "desired set applied");
                        return vec![Kind::Reconciled(reconciled).into()];
                    }
                    Err(refusal) => refusal,
                }
            }
            Ok(Request::Query) => match self.reports(None).await {
                Ok(reports) => return reports.parts(),
                Err(stopped) => Refusal::new(Reason::Unavailable, stopped, self.summary().revision),
            },
            Ok(_) => Refusal::new(
                Reason::Invalid,
                "this agent does not support the request",
                self.summary().revision,
            ),
            Err(error) => Refusal::new(Reason::Invalid, chain(&error), self.summary().revision),
        };
        tracing::warn!(%from, reason = ?refusal.reason(), "request for volumes refused: {}", refusal.message);
        vec![Kind::Refusal(refusal).into()]
    }
}
