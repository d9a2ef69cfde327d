//! Calls with the id of a volume, a snapshot or a group.

use csi_proto::Method;

use super::own::answered;
use super::search::Search;
use super::{RoutedCall, TopologyRouter};
use crate::call::{Fault, NodeId, Replies, Subject};
use crate::routing::Refusal;

impl TopologyRouter {
    /// Routes a call by the ids of its subjects. The node of an unknown id is [searched](Self::search) first.
    pub(super) async fn locate(&self, call: RoutedCall<'_>) -> Result<Replies, Refusal> {
        let (method, subjects) = (call.method, call.subjects()?);
        let (node, certain) = self.common_node(call, &subjects).await?;
        if method.is_server_streaming() {
            return Ok(self.call_node(call.relay, &node, call.inbound).await);
        }
        let (message, outcome) = self.ask(call, &node).await;
        let Some(message) = message else { return Ok(Replies::outcome(outcome)) };
        let created = match method {
            Method::CreateSnapshot | Method::CreateVolumeGroupSnapshot => answered(method, &message),
            Method::ControllerGetVolume | Method::GetSnapshot | Method::GetVolumeGroupSnapshot => {
                let is_about = |subject| self.is_about(&node, method, subject, &message);
                subjects.first().is_some_and(is_about).then(Vec::new)
            }
            _ => Some(Vec::new()),
        };
        let (Some(created), Ok(message)) = (created, self.own_place(&node).correct(method, message)) else {
            let reason =
                format!("the response to {method} has no usable id, or another one, or cannot be decoded");
            return Ok(Replies::outcome(Fault::Protocol { reason }));
        };
        if certain {
            self.check_created(call, &node, &created).await?;
            for subject in subjects.iter().chain(&created) {
                self.placements.found(subject, &node).await?;
            }
        }
        Ok(Replies::unary(message, outcome))
    }

    /// The node of all subjects, and whether it is certain.
    async fn common_node(
        &self,
        call: RoutedCall<'_>,
        subjects: &[Subject],
    ) -> Result<(NodeId, bool), Refusal> {
        let strict = call.method.is_mutating() || call.has_secrets();
        let (mut common, mut certain) = (self.only(), true);
        if let Some(only) = common {
            return Ok((only, true));
        }
        for subject in subjects {
            let node = match self.placements.node_of(subject) {
                Some(node) => {
                    if strict {
                        self.check_disputed(call, &node, subject).await?;
                    }
                    node
                }
                None => match self.search(call, subject, strict).await? {
                    Search::Found(node) => node,
                    Search::Reported(node) => {
                        certain = false;
                        node
                    }
                    Search::Absent => return Err(Refusal::Absent { subject: subject.clone() }),
                    Search::Unanswerable(node) => {
                        return Err(Refusal::MayBeOn { subject: subject.clone(), node });
                    }
                },
            };
            if common.get_or_insert_with(|| node.clone()) != &node {
                return Err(Refusal::VolumesOnDifferentNodes);
            }
        }
        let no_subject = || Refusal::Undetermined { what: "the request names no subject".to_owned() };
        Ok((common.ok_or_else(no_subject)?, certain))
    }
}
