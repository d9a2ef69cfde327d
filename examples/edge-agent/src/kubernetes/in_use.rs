//! The volumes that are certain to be in the Node's `status.volumesInUse`. No I/O.
//!
//! The attach/detach controller does not detach a volume that is in `status.volumesInUse`. So a volume with an attachment
//! is mounted only after it was written there, as with kubelet. A volume that was attached in the previous set needs
//! no check: it was written then, and has been reported since, so that a reboot needs no hub.

use std::collections::BTreeMap;

use volume_manager::VolumeKey;

use edge_csi_common::kubernetes::message::NodeStatus;

/// Tracks which reported volumes in use were written to the Node.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// The number of the latest status.
    reported: u64,
    /// The number of the latest status whose volumes in use are known to be written.
    written: u64,
    /// The volumes of the latest status, each with the first of the successive statuses that contain it.
    since: BTreeMap<String, u64>,
}

/// Returns the name of a volume in the Node's status.
pub(super) fn unique_volume_name(key: &VolumeKey) -> String {
    format!("kubernetes.io/csi/{}^{}", key.driver, key.id)
}

impl InUse {
    /// Records the status that is sent from now on. Returns its number.
    pub(super) fn report(&mut self, status: &NodeStatus) -> u64 {
        self.reported += 1;
        let mut before = std::mem::take(&mut self.since);
        let names = status.volumes_in_use.iter();
        self.since = names
            .map(|name| {
                let since = before.remove(name).unwrap_or(self.reported);
                (name.clone(), since)
            })
            .collect();
        self.reported
    }

    /// Records that the volumes in use of a status were written. Returns whether that is new.
    pub(super) fn confirm_written(&mut self, number: u64) -> bool {
        let is_new = number > self.written;
        self.written = self.written.max(number);
        is_new
    }

    /// Whether the Node's status is certain to contain the volume.
    pub(super) fn has(&self, key: &VolumeKey) -> bool {
        self.since.get(&unique_volume_name(key)).is_some_and(|since| *since <= self.written)
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};

    use super::*;

    fn key(id: &str) -> VolumeKey {
        VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new(id).unwrap() }
    }

    fn status(ids: &[&str]) -> NodeStatus {
        let volumes_in_use = ids.iter().map(|id| unique_volume_name(&key(id))).collect();
        NodeStatus { volumes_in_use, ..NodeStatus::default() }
    }

    #[test]
    fn in_use_from_a_written_status_until_one_without_it() {
        let mut in_use = InUse::default();
        let has = |in_use: &InUse| [in_use.has(&key("a")), in_use.has(&key("b"))];
        let first = in_use.report(&status(&["a"]));
        assert_eq!(has(&in_use), [false, false]);
        let second = in_use.report(&status(&["a", "b"]));
        assert!(in_use.confirm_written(first) && !in_use.confirm_written(first));
        assert_eq!(has(&in_use), [true, false], "the second status is not written yet, and still contains a");
        assert!(in_use.confirm_written(second));
        assert_eq!(has(&in_use), [true, true]);
        // Volume a is removed and added again: the status written meanwhile does not contain it.
        let third = in_use.report(&status(&["b"]));
        assert_eq!(has(&in_use), [false, true]);
        let fourth = in_use.report(&status(&["a", "b"]));
        assert!(in_use.confirm_written(third));
        assert_eq!(has(&in_use), [false, true]);
        assert!(!in_use.confirm_written(second) && in_use.confirm_written(fourth));
        assert_eq!(has(&in_use), [true, true]);
    }
}
