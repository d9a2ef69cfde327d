//! What a driver says of itself, cut down to what these bindings understand, and its record on disk.
//!
//! ```proto
//! message Record {
//!   bytes info = 1;              // GetPluginInfoResponse
//!   bytes plugin = 2;            // GetPluginCapabilitiesResponse
//!   Fact controller = 3;
//!   Fact group = 4;
//!   uint64 as_of = 5;            // seconds since 1970
//!   Fact node_info = 6;
//!   Fact node_service = 7;
//! }
//! message Fact { optional bytes answer = 1; string not_offered = 2; }
//! ```
//!
//! Before the record stands its CRC-32, little-endian.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use prost::Message;

use super::question::Question;

/// Largest record in bytes. A driver's answers have a few hundred.
pub const MAX_RECORD: usize = 64 * 1024;

/// A driver's answer to a capability question.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "an answer or a refusal, and nothing else")]
pub enum Fact {
    /// The response message.
    Answer(Bytes),
    /// The driver does not offer the service: `UNIMPLEMENTED`, with this message.
    NotOffered(String),
}

impl Fact {
    pub(super) fn decode<M: Message + Default>(&self) -> Option<M> {
        match self {
            Self::Answer(answer) => M::decode(answer.clone()).ok(),
            Self::NotOffered(_) => None,
        }
    }
}

/// Everything that is known of a driver on a node. Small, and without a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The `GetPluginInfoResponse`, under the name that the driver is configured with.
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

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(bytes = "bytes", optional, tag = "1")]
    info: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    plugin: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    controller: Option<FactRecord>,
    #[prost(message, optional, tag = "4")]
    group: Option<FactRecord>,
    #[prost(uint64, tag = "5")]
    as_of: u64,
    #[prost(message, optional, tag = "6")]
    node_info: Option<FactRecord>,
    #[prost(message, optional, tag = "7")]
    node_service: Option<FactRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct FactRecord {
    #[prost(bytes = "bytes", optional, tag = "1")]
    answer: Option<Bytes>,
    #[prost(string, tag = "2")]
    not_offered: String,
}

impl Info {
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

    /// What the node says of itself; nothing if its driver has no node service.
    pub(super) fn node_info(&self) -> csi::NodeGetInfoResponse {
        self.node.as_ref().and_then(Fact::decode).unwrap_or_default()
    }

    pub(super) fn has_service(&self, wanted: ServiceType) -> bool {
        let plugin = self.plugin.clone().map(csi::GetPluginCapabilitiesResponse::decode);
        plugin.is_some_and(|plugin| plugin.is_ok_and(|plugin| plugin.has_service(wanted)))
    }

    /// Whether each question has its answer.
    pub(super) fn is_complete(&self, with_node_info: bool) -> bool {
        let Self { info, plugin, controller, group, node_service, node } = self;
        let services = controller.is_some() && group.is_some() && node_service.is_some();
        info.is_some() && plugin.is_some() && services && (node.is_some() || !with_node_info)
    }

    /// The record of what was true at that time, which is kept in whole seconds.
    #[must_use]
    pub fn encode(&self, as_of: SystemTime) -> Bytes {
        let fact = |fact: &Option<Fact>| {
            fact.as_ref().map(|fact| match fact {
                Fact::Answer(answer) => FactRecord { answer: Some(answer.clone()), ..FactRecord::default() },
                Fact::NotOffered(text) => FactRecord { answer: None, not_offered: text.clone() },
            })
        };
        let record = Record {
            info: self.info.clone(),
            plugin: self.plugin.clone(),
            controller: fact(&self.controller),
            group: fact(&self.group),
            as_of: as_of.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            node_info: fact(&self.node),
            node_service: fact(&self.node_service),
        };
        let record = record.encode_to_vec();
        [&crc32fast::hash(&record).to_le_bytes(), &record[..]].concat().into()
    }

    /// What a record says, and when that was true. `None` if it is damaged or too large.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, SystemTime)> {
        let (sum, record) = bytes.split_first_chunk()?;
        if bytes.len() > MAX_RECORD || crc32fast::hash(record) != u32::from_le_bytes(*sum) {
            return None;
        }
        let Record { info, plugin, controller, group, as_of, node_info, node_service } =
            Record::decode(record).ok()?;
        let fact = |record: FactRecord| match record.answer {
            Some(answer) => Fact::Answer(answer),
            None => Fact::NotOffered(record.not_offered),
        };
        let (controller, group) = (controller.map(fact), group.map(fact));
        let (node_service, node) = (node_service.map(fact), node_info.map(fact));
        let info = Self { info, plugin, controller, group, node_service, node };
        Some((info, UNIX_EPOCH.checked_add(Duration::from_secs(as_of))?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_every_cut_and_flipped_bit_is_noticed() {
        let info = Info {
            info: Some(Bytes::from_static(b"info")),
            plugin: Some(Bytes::from_static(b"plugin")),
            controller: Some(Fact::Answer(Bytes::new())),
            group: Some(Fact::NotOffered("no such service".to_owned())),
            node_service: Some(Fact::Answer(Bytes::from_static(b"service"))),
            node: None,
        };
        let as_of = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let bytes = info.encode(as_of);
        for end in 0..bytes.len() {
            assert_eq!(Info::decode(&bytes[..end]), None, "cut after {end} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Info::decode(&changed), None, "bit {bit} flipped");
        }
        assert_eq!(Info::decode(&bytes), Some((info, as_of)));
    }
}
