//! The fields of an encoded message.

#![cfg_attr(
    not(feature = "runtime"),
    allow(unused_imports, dead_code, reason = "the core reads, the runtime adds")
)]

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

pub(super) use crate::protobuf::{count, text, texts, with, without};

/// The field of CreateVolumeResponse with the volume, and the field of a volume with its topologies.
const VOLUME: u32 = 1;
const ACCESSIBLE_TOPOLOGY: u32 = 5;

/// The answer to a CreateVolume with this topology, if its volume names none. Without one a pod could be put where its volume is not.
pub(crate) fn with_topology(message: Bytes, topology: &csi::Topology) -> Bytes {
    let known = csi::CreateVolumeResponse::decode(message.clone()).ok().and_then(|answer| answer.volume);
    if topology.segments.is_empty() || known.is_none_or(|volume| !volume.accessible_topology.is_empty()) {
        return message;
    }
    with(&message, VOLUME, &with(&[], ACCESSIBLE_TOPOLOGY, &topology.encode_to_vec()))
}
