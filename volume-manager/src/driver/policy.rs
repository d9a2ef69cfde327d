//! What a CSIDriver object says of a driver.

use super::consumer_spec::ConsumerSpec;
use super::facts::NodeCapabilities;
use super::volume_spec::VolumeSpec;
use super::{Access, AccessMode};
pub use crate::generated::volumes::{FsGroupPolicy, TokenRequest};
use crate::lifecycle::Attach;

/// What a CSIDriver object says. [`Default`] is what Kubernetes takes where there is no object, or no field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverPolicy {
    /// `attachRequired`: volumes are attached before they are used. Default: true.
    pub attach_required: bool,
    /// `podInfoOnMount`: NodePublishVolume tells which pod it is for. Default: false.
    pub pod_info_on_mount: bool,
    /// `volumeLifecycleModes` has `Persistent`. Default: true.
    pub persistent: bool,
    /// `volumeLifecycleModes` has `Ephemeral`. Default: false.
    pub ephemeral: bool,
    /// `fsGroupPolicy`. Default: [`FsGroupPolicy::ReadWriteOnceWithFsType`].
    pub fs_group_policy: FsGroupPolicy,
    /// `requiresRepublish`: NodePublishVolume is repeated now and then. Default: false.
    pub requires_republish: bool,
    /// `seLinuxMount`: the driver takes the `context` mount option. Default: false.
    pub selinux_mount: bool,
    /// `tokenRequests`. Default: none.
    pub token_requests: Vec<TokenRequest>,
    /// `serviceAccountTokenInSecrets`: tokens go with the secrets, not with the volume context. Default: false.
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

/// Who gives the files of a published volume to the group that was asked for.
#[allow(clippy::exhaustive_enums, reason = "nobody, the driver, or the caller")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnershipChange {
    /// Nobody: no group was asked for, or the policy forbids it.
    Nobody,
    /// The driver: the request names the group.
    Driver {
        /// The group.
        group: u32,
    },
    /// The caller, after the volume is published: the driver cannot. Kubelet then walks over all files.
    Caller {
        /// The group.
        group: u32,
    },
}

impl DriverPolicy {
    /// Whether the driver takes volumes of this kind of life, as its `volumeLifecycleModes` say.
    #[must_use]
    pub fn admits(&self, volume: &VolumeSpec) -> bool {
        if volume.is_ephemeral() { self.ephemeral } else { self.persistent }
    }

    /// Who attaches the volume once this policy is heeded.
    #[must_use]
    pub fn attach(&self, volume: &VolumeSpec) -> Attach {
        if self.attach_required { volume.attach() } else { Attach::NotRequired }
    }

    /// Who gives the files to the group that was asked for, as kubelet decides it: the driver if it can, whatever the
    /// policy says; else the caller, if the policy allows it.
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
            return OwnershipChange::Nobody;
        };
        if driver.volume_mount_group {
            return OwnershipChange::Driver { group };
        }
        let wanted = match self.fs_group_policy {
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
        // Nothing can be given away on a mount that takes no writes.
        let writable = !volume.is_read_only() && !consumer.is_read_only();
        if wanted && writable { OwnershipChange::Caller { group } } else { OwnershipChange::Nobody }
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
    fn a_driver_without_a_csidriver_object_needs_an_attach_and_takes_persistent_volumes() {
        let policy = DriverPolicy::default();
        let persistent = volume("ext4", AccessMode::SingleNodeWriter);
        assert_eq!((policy.admits(&persistent), policy.attach(&persistent)), (true, Attach::Here));
        let ephemeral = persistent.to_builder().ephemeral().build().unwrap();
        assert!(!policy.admits(&ephemeral));
        let lax = DriverPolicy { attach_required: false, ..DriverPolicy::default() };
        assert_eq!(lax.attach(&persistent), Attach::NotRequired);
    }

    #[test]
    fn files_are_given_away_by_the_driver_if_it_can_and_else_as_the_policy_says() {
        use AccessMode::*;
        use FsGroupPolicy::*;
        let (nobody, caller) = (OwnershipChange::Nobody, OwnershipChange::Caller { group: 5 });
        for (fs_group_policy, fs_type, mode, expected) in [
            (ReadWriteOnceWithFsType, "ext4", SingleNodeWriter, caller),
            (ReadWriteOnceWithFsType, "ext4", SingleNodeSingleWriter, caller),
            (ReadWriteOnceWithFsType, "", SingleNodeWriter, nobody),
            (ReadWriteOnceWithFsType, "ext4", MultiNodeMultiWriter, nobody),
            (File, "", MultiNodeMultiWriter, caller),
            (File, "", MultiNodeReaderOnly, nobody),
            (None, "ext4", SingleNodeWriter, nobody),
        ] {
            let policy = DriverPolicy { fs_group_policy, ..DriverPolicy::default() };
            let volume = volume(fs_type, mode);
            let found = policy.ownership_change(&volume, &consumer(), &NodeCapabilities::default());
            assert_eq!(found, expected, "{fs_group_policy:?} {fs_type} {mode:?}");
            let able = NodeCapabilities { volume_mount_group: true, ..Default::default() };
            let found = policy.ownership_change(&volume, &consumer().fs_group(7), &able);
            assert_eq!(found, OwnershipChange::Driver { group: 7 });
        }
    }
}
