//! What the endpoint asks in the background, to answer sidecars when they start.

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message;

use super::capabilities;
use super::way::Way;
use super::{TopologyRouter, path};
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::startup::Question;

impl TopologyRouter {
    /// The answer of all nodes together.
    pub(crate) async fn startup(&self, way: &Way<'_>, question: Question) -> Result<Bytes, Outcome> {
        if question == Question::Probe {
            return self.probe(way).await;
        }
        let mut facts = self.nodes.all_facts();
        if facts.is_empty() {
            self.survey_absent(way).await;
            facts = self.nodes.all_facts();
        }
        if facts.is_empty() {
            return Err(self.nobody());
        }
        let not_offered =
            || Outcome::from_driver(crate::Code::UNIMPLEMENTED, "not every node's driver has the service");
        match question {
            Question::PluginInfo => capabilities::info(&facts).map(encoded).ok_or_else(|| self.nobody()),
            Question::PluginCapabilities => {
                capabilities::plugin(&facts).map(encoded).ok_or_else(|| self.nobody())
            }
            Question::ControllerCapabilities => {
                capabilities::controller(&facts).map(encoded).ok_or_else(not_offered)
            }
            Question::GroupControllerCapabilities => {
                capabilities::group(&facts).map(encoded).ok_or_else(not_offered)
            }
            Question::NodeCapabilities => {
                capabilities::node_service(&facts).map(encoded).ok_or_else(not_offered)
            }
            // A driver on many nodes is none of them.
            Question::NodeInfo => Err(not_offered()),
            Question::Probe => Err(self.nobody()),
        }
    }

    /// Ready if one node's driver is. Asks one after the other until it has found that.
    async fn probe(&self, way: &Way<'_>) -> Result<Bytes, Outcome> {
        let mut nodes = self.nodes.online();
        if nodes.is_empty() {
            self.survey_absent(way).await;
            nodes = self.nodes.online();
        }
        let method = path(csi_proto::Method::Probe)?;
        let mut last = Err(self.nobody());
        for node in nodes {
            let (message, outcome) = way.ask(&node, &method, Bytes::new()).await;
            self.nodes.tell(&node, &outcome);
            let is_ready = |message: &Bytes| {
                csi::ProbeResponse::decode(message.clone()).is_ok_and(|probe| probe.ready.unwrap_or(true))
            };
            match message {
                Some(message) if is_ready(&message) => return Ok(message),
                Some(message) => last = Ok(message),
                None => last = last.or(Err(outcome)),
            }
        }
        last
    }

    fn nobody(&self) -> Outcome {
        Fault::NoNode { reason: "no node of the route can be reached".to_owned() }.into()
    }
}

fn encoded(message: impl Message) -> Bytes {
    message.encode_to_vec().into()
}
