//! What has been learnt of a driver, cut down to what these bindings understand.

use std::fmt;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use prost::Message;

use super::question::Question;
use crate::call::NodeId;
use csi_proto::Code;

/// A driver's answer to a capability question.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "an answer or a refusal, and nothing else")]
pub enum Fact {
    /// The response message.
    Answer(Bytes),
    /// The driver does not offer the service: `UNIMPLEMENTED`, with this message.
    NotOffered(String),
}

/// Everything that is known of a driver. Small, and without a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// The `GetPluginInfoResponse`, under the name that the endpoint was given.
    pub info: Option<Bytes>,
    /// The `GetPluginCapabilitiesResponse`, without values that are unknown here.
    pub plugin: Option<Bytes>,
    /// The controller's capabilities, without values that are unknown here.
    pub controller: Option<Fact>,
    /// The group controller's capabilities, without values that are unknown here.
    pub group: Option<Fact>,
    /// The node service's capabilities, without values that are unknown here.
    pub node_service: Option<Fact>,
    /// The `NodeGetInfoResponse`, if it was asked for.
    pub node: Option<Fact>,
}

/// Whose facts they are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a driver is known by its name and its node")]
pub struct Subject {
    /// The driver, by the name that the endpoint was given.
    pub driver: DriverName,
    /// The node that the driver is on; `None` if that is decided call by call.
    pub node: Option<NodeId>,
}

impl Facts {
    /// Where the answer to a question goes that a driver may say it does not offer.
    pub(super) fn fact_of(&mut self, question: Question) -> Option<&mut Option<Fact>> {
        match question {
            Question::ControllerCapabilities => Some(&mut self.controller),
            Question::GroupControllerCapabilities => Some(&mut self.group),
            Question::NodeCapabilities => Some(&mut self.node_service),
            Question::NodeInfo => Some(&mut self.node),
            Question::PluginInfo | Question::PluginCapabilities | Question::Probe => None,
        }
    }

    /// Where the node is, if it has said that.
    #[cfg(feature = "runtime")]
    pub(super) fn place(&self) -> Option<csi::Topology> {
        let Some(Fact::Answer(answer)) = &self.node else { return None };
        let info = csi::NodeGetInfoResponse::decode(answer.clone()).ok()?;
        info.accessible_topology.filter(|topology| !topology.segments.is_empty())
    }

    pub(super) fn has_controller(&self) -> Option<bool> {
        self.offers(ServiceType::ControllerService)
    }

    pub(super) fn has_group_controller(&self) -> Option<bool> {
        self.offers(ServiceType::GroupControllerService)
    }

    fn offers(&self, wanted: ServiceType) -> Option<bool> {
        let plugin = csi::GetPluginCapabilitiesResponse::decode(self.plugin.clone()?).ok()?;
        Some(plugin.capabilities.iter().any(|capability| match &capability.r#type {
            Some(csi::plugin_capability::Type::Service(service)) => service.r#type() == wanted,
            _ => false,
        }))
    }
}

impl Subject {
    pub(super) fn node_name(&self) -> String {
        self.node.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&described(self.driver.as_str(), &self.node_name()))
    }
}

pub(super) fn described(driver: &str, node: &str) -> String {
    if node.is_empty() { format!("driver {driver:?}") } else { format!("driver {driver:?} on node {node:?}") }
}

impl Fact {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Answer(_) => Code::OK,
            Self::NotOffered(_) => Code::UNIMPLEMENTED,
        }
    }
}

/// Keeps the plugin capabilities that are known here. A consumer that is built for an older spec fails on others.
pub(super) fn mask_plugin(answer: Bytes) -> Option<Bytes> {
    use csi::plugin_capability::{Type, volume_expansion};
    let mut response = csi::GetPluginCapabilitiesResponse::decode(answer).ok()?;
    response.capabilities.retain(|capability| match &capability.r#type {
        Some(Type::Service(service)) => known::<ServiceType>(service.r#type),
        Some(Type::VolumeExpansion(expansion)) => known::<volume_expansion::Type>(expansion.r#type),
        None => false,
    });
    Some(response.encode_to_vec().into())
}

macro_rules! masks {
    ($($(#[$doc:meta])* $mask:ident: $module:ident of $response:ident),*) => {$(
        $(#[$doc])*
        pub(super) fn $mask(answer: Bytes) -> Option<Bytes> {
            use csi::$module::{Type, rpc};
            let mut response = csi::$response::decode(answer).ok()?;
            response.capabilities.retain(
                |capability| matches!(&capability.r#type, Some(Type::Rpc(rpc)) if known::<rpc::Type>(rpc.r#type)),
            );
            Some(response.encode_to_vec().into())
        }
    )*};
}

masks! {
    /// Keeps the controller capabilities that are known here.
    mask_controller: controller_service_capability of ControllerGetCapabilitiesResponse,
    /// Keeps the group controller capabilities that are known here.
    mask_group: group_controller_service_capability of GroupControllerGetCapabilitiesResponse,
    /// Keeps the node service's capabilities that are known here.
    mask_node: node_service_capability of NodeGetCapabilitiesResponse
}

/// Whether an enum has the number, and it is not the "unknown" of all these enums, 0.
fn known<E: TryFrom<i32>>(number: i32) -> bool {
    number != 0 && E::try_from(number).is_ok()
}
