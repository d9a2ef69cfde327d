//! Which volumes the cluster is certain to have as in use by this node. No I/O.
//!
//! The attach/detach controller leaves a volume where it is while the Node's `status.volumesInUse` has it. So one that others
//! attach is mounted only when that was written, as with kubelet. What was attached in the set before needs no word: it was
//! written then, and the volume has been told to be in use ever since, so that nobody is asked after a reboot.

use std::collections::BTreeMap;

use volume_manager::VolumeKey;

use edge_csi_common::kubernetes::message::NodeStatus;

/// What was told, and what of it was written.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// The number of the latest status.
    told: u64,
    /// The latest status of which it is known that its volumes in use were written.
    written: u64,
    /// The volumes of the latest status, each with the first status since when all have had it.
    since: BTreeMap<String, u64>,
}

/// What the Node's status calls a volume.
pub(super) fn name_of(key: &VolumeKey) -> String {
    format!("kubernetes.io/csi/{}^{}", key.driver, key.id)
}

impl InUse {
    /// A status is told from now on, in place of the one before. Answers its number.
    pub(super) fn tells(&mut self, status: &NodeStatus) -> u64 {
        self.told += 1;
        let mut before = std::mem::take(&mut self.since);
        let names = status.volumes_in_use.iter();
        self.since = names
            .map(|name| {
                let since = before.remove(name).unwrap_or(self.told);
                (name.clone(), since)
            })
            .collect();
        self.told
    }

    /// The volumes in use of a status were written. Answers whether that is new.
    pub(super) fn is_written(&mut self, number: u64) -> bool {
        let is_new = number > self.written;
        self.written = self.written.max(number);
        is_new
    }

    /// Whether the cluster has this volume as in use, and goes on to have it.
    pub(super) fn has(&self, key: &VolumeKey) -> bool {
        self.since.get(&name_of(key)).is_some_and(|since| *since <= self.written)
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
        let volumes_in_use = ids.iter().map(|id| name_of(&key(id))).collect();
        NodeStatus { volumes_in_use, ..NodeStatus::default() }
    }

    #[test]
    fn a_volume_is_in_use_once_a_status_with_it_is_written_and_until_one_without_it_is_told() {
        let mut in_use = InUse::default();
        let has = |in_use: &InUse| [in_use.has(&key("a")), in_use.has(&key("b"))];
        let first = in_use.tells(&status(&["a"]));
        assert_eq!(has(&in_use), [false, false]);
        let second = in_use.tells(&status(&["a", "b"]));
        assert!(in_use.is_written(first) && !in_use.is_written(first));
        assert_eq!(has(&in_use), [true, false], "the second is not written yet, and has it still");
        assert!(in_use.is_written(second));
        assert_eq!(has(&in_use), [true, true]);
        // It leaves and comes back: what was written meanwhile lacks it.
        let third = in_use.tells(&status(&["b"]));
        assert_eq!(has(&in_use), [false, true]);
        let fourth = in_use.tells(&status(&["a", "b"]));
        assert!(in_use.is_written(third));
        assert_eq!(has(&in_use), [false, true]);
        assert!(!in_use.is_written(second) && in_use.is_written(fourth));
        assert_eq!(has(&in_use), [true, true]);
    }
}
