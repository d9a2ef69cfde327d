//! NodeGetVolumeStats.

use csi::volume_usage::Unit;
use csi_proto::csi::v1 as csi;
use rustix::fs::statvfs;

use super::host_path::HostPath;
use crate::capability::Access;
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::volume::{GrantedAccess, VolumeRecord};

impl Driver {
    /// Returns bytes and inodes of a filesystem; for a directory volume, those of the filesystem that contains it.
    pub(crate) fn node_get_volume_stats(
        &self,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, CallError> {
        required("volume_path", "a path at which the volume is published or staged", &request.volume_path)?;
        let volume = self.read_volume(&request.volume_id)?;
        let (path, granted) = self.granted_access(&volume, &request.volume_path)?;
        if granted.capability.access == Access::Block {
            let total = i64::try_from(volume.capacity_bytes).unwrap_or(i64::MAX);
            let usage = csi::VolumeUsage { total, unit: Unit::Bytes.into(), ..Default::default() };
            return Ok(csi::NodeGetVolumeStatsResponse { usage: vec![usage] });
        }
        let space = statvfs(path.as_path())
            .map_err(|errno| CallError::path("measure", path.as_path(), errno.into()))?;
        let usage = |unit: Unit, factor: u64, total: u64, free: u64, available: u64| {
            let amount = |count: u64| i64::try_from(count.saturating_mul(factor)).unwrap_or(i64::MAX);
            csi::VolumeUsage {
                available: amount(available),
                total: amount(total),
                used: amount(total.saturating_sub(free)),
                unit: unit.into(),
            }
        };
        let bytes = usage(Unit::Bytes, space.f_frsize, space.f_blocks, space.f_bfree, space.f_bavail);
        let inodes = usage(Unit::Inodes, 1, space.f_files, space.f_ffree, space.f_favail);
        Ok(csi::NodeGetVolumeStatsResponse { usage: vec![bytes, inodes] })
    }

    /// Returns the access to the volume at a path at which it is mounted.
    pub(super) fn granted_access<'a>(
        &self,
        volume: &'a VolumeRecord,
        path: &str,
    ) -> Result<(HostPath, &'a GrantedAccess), CallError> {
        let not_found = || CallError::NotFound {
            subject: "published or staged path",
            found: path.to_owned(),
            hint: format!(" of volume {}", volume.id),
        };
        let at = HostPath::parse("volume_path", path).map_err(|_| not_found())?;
        let presence = self.presence(volume)?;
        let staged = volume
            .staged
            .as_ref()
            .filter(|(staging, _)| staging == at.as_str() && presence.is_staged(volume));
        let published = || volume.published.get(at.as_str()).filter(|_| presence.is_on(at.as_path()));
        let granted = staged.map(|(_, granted)| granted).or_else(published).ok_or_else(not_found)?;
        Ok((at, granted))
    }
}
