//! `DeleteVolume`, `DeleteSnapshot` and `DeleteVolumeGroupSnapshot`.

use bytes::Bytes;
use csi_proto::{Code, Method};
use futures_util::{StreamExt as _, stream};

use super::{Answer, MAX_CONCURRENT_ROUNDS, RoutedCall, TopologyRouter};
use crate::call::Subject;
use crate::call::{Fault, NodeId, Origin, Outcome, protobuf};
use crate::routing::Refusal;

/// The number of the field of DeleteVolumeGroupSnapshotRequest that names the snapshots of the group.
const SNAPSHOT_IDS: u32 = 2;

impl TopologyRouter {
    pub(super) async fn remove(&self, call: RoutedCall<'_>) -> Result<Answer, Refusal> {
        let mut subjects = call.subjects()?;
        let known = subjects.first().and_then(|subject| self.placements.node_of(subject));
        let is_deleted = |subject| self.placements.read(|placements| placements.is_deleted(subject));
        let answer = match &known {
            // A repeated deletion succeeds while nodes are offline. The responses of all three methods are empty.
            _ if subjects.first().is_some_and(is_deleted) => {
                (Some(Bytes::new()), Outcome::from_endpoint(Code::OK, ""))
            }
            Some(node) => {
                for subject in &subjects {
                    self.check_disputed(call, node, subject).await?;
                }
                self.ask(call, node).await
            }
            None => self.ask_holder_or_all(call, &subjects).await?,
        };
        if answer.1.is_ok() {
            if call.method == Method::DeleteVolumeGroupSnapshot {
                let snapshots = protobuf::texts(&call.inbound.body, SNAPSHOT_IDS);
                subjects.extend(snapshots.map(|id| Subject::Snapshot(id.into())));
            }
            // A node deletes nothing of another node, whatever the request for its group names.
            let others = |subject: &Subject| {
                let found = self.placements.node_of(subject);
                found.is_some() && found != known
            };
            subjects.retain(|subject| !others(subject));
            for subject in &subjects {
                self.placements.deleted(subject).await?;
            }
            for node in known.map_or_else(|| self.names(), |node| vec![node]) {
                self.capacity_cache().changed(&node);
            }
        }
        Ok(answer)
    }

    /// Sends a removal of an unknown subject to the node that has it, or else to all nodes without its secrets.
    pub(super) async fn ask_holder_or_all(
        &self,
        call: RoutedCall<'_>,
        subjects: &[Subject],
    ) -> Result<Answer, Refusal> {
        self.check_complete()?;
        if let Some(node) = self.only() {
            return Ok(self.ask(call, &node).await);
        }
        if let Some(subject) = subjects.first()
            && let Some(node) = self.node_of_removal(call, subject).await?
        {
            return Ok(self.ask(call, &node).await);
        }
        let stripped = call.without_secrets()?;
        Ok(merge_results(self.ask_all(call.with(&stripped), self.names()).await))
    }

    /// Calls nodes concurrently. The answers are in the order of the nodes.
    pub(super) async fn ask_all(&self, call: RoutedCall<'_>, nodes: Vec<NodeId>) -> Vec<Answer> {
        let one = |node: NodeId| async move { self.ask(call, &node).await };
        stream::iter(nodes).map(one).buffered(MAX_CONCURRENT_ROUNDS).collect().await
    }
}

/// Merges the answers of nodes to a deletion: OK if every node reports the subject as deleted, otherwise a
/// failure, preferably of a driver.
pub(super) fn merge_results(answers: Vec<Answer>) -> Answer {
    let is_absent = |answer: &Answer| {
        answer.1.is_ok() || (answer.1.origin == Origin::Driver && answer.1.code == Code::NOT_FOUND)
    };
    let rank = |answer: &Answer| match &answer.1.origin {
        _ if answer.1.is_ok() => 2,
        _ if is_absent(answer) => 3,
        Origin::Driver => 0,
        _ => 1,
    };
    let no_nodes = || (None, Fault::NoNode { reason: "the route has no nodes".to_owned() }.into());
    answers.into_iter().min_by_key(rank).unwrap_or_else(no_nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(answers: &[Outcome]) -> Code {
        let answer = |outcome: &Outcome| (outcome.is_ok().then(Bytes::new), outcome.clone());
        merge_results(answers.iter().map(answer).collect()).1.code
    }

    #[test]
    fn deleted_only_if_every_node_agrees() {
        let (ok, not_found) = (Outcome::ok(), Outcome::from_driver(Code::NOT_FOUND, "none"));
        let in_use = Outcome::from_driver(Code::FAILED_PRECONDITION, "in use");
        let offline = Outcome::from(Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() });
        assert_eq!(code_of(&[ok.clone(), ok.clone()]), Code::OK);
        assert_eq!(code_of(&[not_found.clone(), ok.clone()]), Code::OK);
        assert_eq!(code_of(&[not_found.clone(), not_found.clone()]), Code::NOT_FOUND);
        assert_eq!(code_of(&[ok.clone(), offline.clone(), not_found]), Code::UNAVAILABLE);
        assert_eq!(code_of(&[ok, offline, in_use]), Code::FAILED_PRECONDITION);
    }
}
