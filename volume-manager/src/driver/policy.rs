//! The policy of a driver, from its CSIDriver object.

use super::consumer_spec::ConsumerSpec;
use super::facts::NodeCapabilities;
use super::volume_spec::VolumeSpec;
use super::{Access, AccessMode};
pub use crate::generated::volumes::{FsGroupPolicy, TokenRequest};
use crate::lifecycle::Attach;

/// The fields of a CSIDriver object. [`Default`] has the defaults of Kubernetes, also for a driver without such an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverPolicy {
    /// `attachRequired`: volumes are attached before they are used. Default: true.
    pub attach_required: bool,
    /// `podInfoOnMount`: NodePublishVolume contains the pod's name, namespace, UID and service account. Default:
    /// false.
    pub pod_info_on_mount: bool,
    /// `volumeLifecycleModes` contains `Persistent`. Default: true.
    pub persistent: bool,
    /// `volumeLifecycleModes` contains `Ephemeral`. Default: false.
    pub ephemeral: bool,
    /// `fsGroupPolicy`. Default: [`FsGroupPolicy::ReadWriteOnceWithFsType`].
    pub fs_group_policy: FsGroupPolicy,
    /// `requiresRepublish`: NodePublishVolume is repeated periodically. Default: false.
    pub requires_republish: bool,
    /// `seLinuxMount`: the driver accepts the `context` mount option. Default: false.
    pub selinux_mount: bool,
    /// `tokenRequests`. Default: none.
    pub token_requests: Vec<TokenRequest>,
    /// `serviceAccountTokenInSecrets`: tokens are sent in the secrets, not in the volume context. Default: false.
    pub token_in_secrets: bool,
}

impl Default for DriverPolicy {
    fn default() -> Self {
        Self {
            attach_required: true,
            pod_info_on_mount: false,
            persistent: true,
            ephemeral: false,
            fs_group_policy: FsGroupPolicy::default(),
            requires_republish: false,
            selinux_mount: false,
            token_requests: Vec::new(),
            token_in_secrets: false,
        }
    }
}

/// Which side applies the requested fsGroup to the files of a published volume.
#[allow(clippy::exhaustive_enums, reason = "neither, the driver, or the caller")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnershipChange {
    /// Neither: no group was requested, or the policy forbids it.
    None,
    /// The driver: the request contains the group.
    Driver {
        /// The group.
        group: u32,
    },
    /// The caller, after the volume is published, since the driver cannot. Kubelet changes each file in this case.
    Caller {
        /// The group.
        group: u32,
    },
}

impl DriverPolicy {
    /// Whether `volumeLifecycleModes` contains the volume's lifecycle mode.
    #[must_use]
    pub fn admits(&self, volume: &VolumeSpec) -> bool {
        if volume.is_ephemeral() { self.ephemeral } else { self.persistent }
    }

    /// How the volume is attached under this policy.
    #[must_use]
    pub fn attach(&self, volume: &VolumeSpec) -> Attach {
        if self.attach_required { volume.attach() } else { Attach::NotRequired }
    }

    /// Which side applies the fsGroup, by kubelet's rules: the driver if it has `VOLUME_MOUNT_GROUP`, whatever the policy; else
    /// the caller, if the policy allows it.
    #[must_use]
    pub fn ownership_change(
        &self,
        volume: &VolumeSpec,
        consumer: &ConsumerSpec,
        driver: &NodeCapabilities,
    ) -> OwnershipChange {
        let (Some(group), Access::Filesystem { fs_type, .. }) =
            (consumer.own_fs_group().or_else(|| volume.fs_group()), volume.access())
        else {
            return OwnershipChange::None;
        };
        if driver.volume_mount_group {
            return OwnershipChange::Driver { group };
        }
        let is_allowed = match self.fs_group_policy {
            FsGroupPolicy::None => false,
            FsGroupPolicy::File => true,
            FsGroupPolicy::ReadWriteOnceWithFsType => {
                let one_node = matches!(
                    volume.mode(),
                    AccessMode::SingleNodeWriter
                        | AccessMode::SingleNodeSingleWriter
                        | AccessMode::SingleNodeMultiWriter
                );
                !fs_type.is_empty() && one_node
            }
        };
        // Ownership cannot be changed on a read-only mount.
        let writable = !volume.is_read_only() && !consumer.is_read_only();
        if is_allowed && writable { OwnershipChange::Caller { group } } else { OwnershipChange::None }
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};

    use super::*;
    use crate::driver::MountPath;
    use crate::name::{ConsumerId, VolumeKey};

    fn volume(fs_type: &str, mode: AccessMode) -> VolumeSpec {
        let key = VolumeKey { driver: DriverName::new("a").unwrap(), id: VolumeId::new("v").unwrap() };
        let access = Access::Filesystem { fs_type: fs_type.into(), mount_flags: vec![] };
        VolumeSpec::builder(key, access, mode).fs_group(5).build().unwrap()
    }

    fn consumer() -> ConsumerSpec {
        ConsumerSpec::new(ConsumerId::new("c").unwrap(), MountPath::new("/t").unwrap())
    }

    #[test]
    fn default_policy_requires_attach_and_persistent_volumes() {
        let policy = DriverPolicy::default();
        let persistent = volume("ext4", AccessMode::SingleNodeWriter);
        assert_eq!((policy.admits(&persistent), policy.attach(&persistent)), (true, Attach::Here));
        let ephemeral = persistent.to_builder().ephemeral().build().unwrap();
        assert!(!policy.admits(&ephemeral));
        let without_attach = DriverPolicy { attach_required: false, ..DriverPolicy::default() };
        assert_eq!(without_attach.attach(&persistent), Attach::NotRequired);
    }

    #[test]
    fn driver_applies_fs_group_if_able_else_policy_decides() {
        use AccessMode::*;
        use FsGroupPolicy::*;
        let (none, caller) = (OwnershipChange::None, OwnershipChange::Caller { group: 5 });
        for (fs_group_policy, fs_type, mode, expected) in [
            (ReadWriteOnceWithFsType, "ext4", SingleNodeWriter, caller),
            (ReadWriteOnceWithFsType, "ext4", SingleNodeSingleWriter, caller),
            (ReadWriteOnceWithFsType, "", SingleNodeWriter, none),
            (ReadWriteOnceWithFsType, "ext4", MultiNodeMultiWriter, none),
            (File, "", MultiNodeMultiWriter, caller),
            (File, "", MultiNodeReaderOnly, none),
            (None, "ext4", SingleNodeWriter, none),
        ] {
            let policy = DriverPolicy { fs_group_policy, ..DriverPolicy::default() };
            let volume = volume(fs_type, mode);
            let found = policy.ownership_change(&volume, &consumer(), &NodeCapabilities::default());
            assert_eq!(found, expected, "{fs_group_policy:?} {fs_type} {mode:?}");
            let capable = NodeCapabilities { volume_mount_group: true, ..Default::default() };
            let found = policy.ownership_change(&volume, &consumer().fs_group(7), &capable);
            assert_eq!(found, OwnershipChange::Driver { group: 7 });
        }
    }
}
