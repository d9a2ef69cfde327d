//! Facts about the RPCs that the spec states only in prose, one row per RPC.

use super::error::CodegenError;

/// The facts about an RPC that the descriptors do not contain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    name: &'static str,
    pub(crate) mutating: bool,
    /// The request field that names the volume; its camel case is the variant of `VolumeKey`.
    pub(crate) volume_key: Option<&'static str>,
    /// The request fields that identify the operation; empty if the RPC is not mutating.
    pub(crate) identity: &'static [&'static str],
}

/// Returns the row of an RPC. Each RPC of the schema needs a row.
pub(crate) fn of(rpc: &str) -> Result<Facts, CodegenError> {
    let row = FACTS.iter().find(|row| row.name == rpc);
    row.copied().ok_or_else(|| CodegenError::FactsMissing { rpc: rpc.to_owned() })
}

/// Returns a row whose RPC is not in the list.
pub(crate) fn without_rpc(rpcs: &[String]) -> Option<&'static str> {
    FACTS.iter().map(|row| row.name).find(|name| !rpcs.iter().any(|rpc| rpc == name))
}

const fn changes(name: &'static str, volume_key: &'static str, identity: &'static [&'static str]) -> Facts {
    Facts { name, mutating: true, volume_key: Some(volume_key), identity }
}

const fn reads(name: &'static str, volume_key: &'static str) -> Facts {
    Facts { name, mutating: false, volume_key: Some(volume_key), identity: &[] }
}

/// Returns the row of an RPC that concerns no particular volume.
const fn without_volume(name: &'static str) -> Facts {
    Facts { name, mutating: false, volume_key: None, identity: &[] }
}

const FACTS: [Facts; 36] = [
    without_volume("GetPluginInfo"),
    without_volume("GetPluginCapabilities"),
    without_volume("Probe"),
    changes("CreateVolume", "name", &["name"]),
    changes("DeleteVolume", "volume_id", &["volume_id"]),
    changes("ControllerPublishVolume", "volume_id", &["volume_id", "node_id"]),
    changes("ControllerUnpublishVolume", "volume_id", &["volume_id", "node_id"]),
    reads("ValidateVolumeCapabilities", "volume_id"),
    without_volume("ListVolumes"),
    without_volume("ControllerListVolumeHealth"),
    reads("ControllerGetVolumeHealth", "volume_id"),
    without_volume("GetCapacity"),
    without_volume("ControllerGetCapabilities"),
    changes("CreateSnapshot", "source_volume_id", &["name"]),
    changes("DeleteSnapshot", "snapshot_id", &["snapshot_id"]),
    without_volume("ListSnapshots"),
    reads("GetSnapshot", "snapshot_id"),
    changes("ControllerExpandVolume", "volume_id", &["volume_id"]),
    reads("ControllerGetVolume", "volume_id"),
    changes("ControllerModifyVolume", "volume_id", &["volume_id"]),
    without_volume("GroupControllerGetCapabilities"),
    changes("CreateVolumeGroupSnapshot", "source_volume_ids", &["name"]),
    changes("DeleteVolumeGroupSnapshot", "group_snapshot_id", &["group_snapshot_id"]),
    reads("GetVolumeGroupSnapshot", "group_snapshot_id"),
    reads("GetMetadataAllocated", "snapshot_id"),
    reads("GetMetadataDelta", "target_snapshot_id"),
    changes("NodeStageVolume", "volume_id", &["volume_id", "staging_target_path"]),
    changes("NodeUnstageVolume", "volume_id", &["volume_id", "staging_target_path"]),
    changes("NodePublishVolume", "volume_id", &["volume_id", "target_path"]),
    changes("NodeUnpublishVolume", "volume_id", &["volume_id", "target_path"]),
    reads("NodeGetVolumeStats", "volume_id"),
    reads("NodeGetVolumeHealth", "volume_id"),
    without_volume("NodeGetStorageHealth"),
    changes("NodeExpandVolume", "volume_id", &["volume_id", "volume_path"]),
    without_volume("NodeGetCapabilities"),
    without_volume("NodeGetInfo"),
];
