//! Computes the fsGroup jobs of the published pod volumes. No I/O.

use std::collections::BTreeMap;

use volume_manager::driver::{
    Access, ConsumerSpec, DriverPolicy, FsGroupPolicy, MountPath, NodeCapabilities, OwnershipChange,
    VolumeSpec,
};
use volume_manager::{ConsumerId, VolumeKey};

use super::super::plan::{Assignment, Plan};
use super::super::status::{Observation, is_published};
use super::tree::FsGroup;

/// A pod's volume, and the group for its files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct FsGroupJob {
    pub(super) key: VolumeKey,
    /// The pod's UID and its name for the volume.
    pub(super) consumer: ConsumerId,
    /// The path at which the volume is published.
    pub(super) target: MountPath,
    pub(super) fs_group: FsGroup,
}

/// An unknown property of a consumer. The consumer's job stays unchanged meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum UnknownProperty {
    /// Whether the driver applies the group: it has not reported its capabilities.
    Driver,
    /// Whether an access mode of the volume is for one node: its claim or PersistentVolume is missing.
    AccessModes,
}

/// Returns the jobs of the published pod volumes, one for each consumer, and the consumers with unknown
/// properties.
pub(in super::super) fn jobs(
    plan: &Plan,
    seen: &Observation,
) -> (Vec<FsGroupJob>, BTreeMap<ConsumerId, UnknownProperty>) {
    let volumes: BTreeMap<_, _> = plan.set.volumes.iter().map(|volume| (volume.spec.key(), volume)).collect();
    let (mut jobs, mut unknown) = (BTreeMap::new(), BTreeMap::new());
    for planned in &plan.pod_volumes {
        let Assignment::Assigned { key, consumer, missing } = &planned.assignment else { continue };
        let published = seen.volumes.get(key).is_some_and(|seen| is_published(seen, consumer));
        let Some(volume) = volumes.get(key).filter(|_| published) else { continue };
        let mut consumers = volume.consumers.iter();
        let Some(spec) = consumers.find(|spec| spec.id() == consumer) else { continue };
        let driver = seen.drivers.iter().find(|driver| driver.name == key.driver);
        let facts = driver.and_then(|driver| driver.facts.as_ref());
        let can = facts.map(|facts| &facts.capabilities.node);
        let policy = plan.set.policy(&key.driver);
        let single_node = missing.is_none().then_some(planned.read_write_once);
        let Some(found) = applier_for_modes(&volume.spec, spec, &policy, can, single_node) else {
            unknown.insert(consumer.clone(), UnknownProperty::AccessModes);
            continue;
        };
        match found {
            Applier::NotAgent => {}
            Applier::Unknown => drop(unknown.insert(consumer.clone(), UnknownProperty::Driver)),
            Applier::Agent { group } => {
                let fs_group = FsGroup { group, only_if_root_differs: planned.on_root_mismatch };
                let (key, consumer, target) = (key.clone(), consumer.clone(), spec.target_path().clone());
                jobs.insert(consumer.clone(), FsGroupJob { key, consumer, target, fs_group });
            }
        }
    }
    (jobs.into_values().collect(), unknown)
}

/// Returns the policy for a volume with an access mode for one node. As with kubelet, its other modes do not
/// matter.
fn single_node_policy(policy: FsGroupPolicy, volume: &VolumeSpec) -> FsGroupPolicy {
    match (policy, volume.access()) {
        (FsGroupPolicy::ReadWriteOnceWithFsType, Access::Filesystem { fs_type, .. })
            if !fs_type.is_empty() =>
        {
            FsGroupPolicy::File
        }
        _ => policy,
    }
}

/// The component that applies fsGroup to a pod's volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applier {
    /// The driver applies fsGroup, or none is requested.
    NotAgent,
    /// The driver has not reported its capabilities.
    Unknown,
    Agent {
        group: u32,
    },
}

/// Returns the component that applies fsGroup. `single_node` is whether an access mode is for one node; `None` if
/// unknown. Returns `None` if the result depends on an unknown `single_node`.
fn applier_for_modes(
    volume: &VolumeSpec,
    consumer: &ConsumerSpec,
    policy: &DriverPolicy,
    driver: Option<&NodeCapabilities>,
    single_node: Option<bool>,
) -> Option<Applier> {
    let mut single = policy.clone();
    single.fs_group_policy = single_node_policy(policy.fs_group_policy, volume);
    let [others, one] = [policy, &single].map(|policy| applier(volume, consumer, policy, driver));
    match single_node {
        Some(true) => Some(one),
        Some(false) => Some(others),
        None => (one == others).then_some(one),
    }
}

fn applier(
    volume: &VolumeSpec,
    consumer: &ConsumerSpec,
    policy: &DriverPolicy,
    driver: Option<&NodeCapabilities>,
) -> Applier {
    let change = |driver: &NodeCapabilities| policy.ownership_change(volume, consumer, driver);
    // Without an fsGroup, the files are left unchanged.
    if consumer.own_fs_group().is_none() {
        return Applier::NotAgent;
    }
    // A driver without capabilities leaves all work to the agent.
    let OwnershipChange::Caller { group } = change(&NodeCapabilities::default()) else {
        return Applier::NotAgent;
    };
    match driver {
        None => Applier::Unknown,
        Some(driver) if change(driver) == (OwnershipChange::Caller { group }) => Applier::Agent { group },
        Some(_) => Applier::NotAgent,
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};
    use volume_manager::driver::AccessMode;

    use super::*;

    #[test]
    fn single_node_policy_applies_to_mixed_access_modes() {
        let key =
            VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new("v").unwrap() };
        let volume = |fs_type: &str| {
            let access = Access::Filesystem { fs_type: fs_type.into(), mount_flags: Vec::new() };
            VolumeSpec::builder(key.clone(), access, AccessMode::MultiNodeMultiWriter).build().unwrap()
        };
        let asks = ConsumerSpec::new(
            ConsumerId::new("9f0c/data").unwrap(),
            MountPath::new("/pods/9f0c/mount").unwrap(),
        )
        .fs_group(7);
        for (fs_group_policy, fs_type, once, expected) in [
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", Some(true), Some(Applier::Agent { group: 7 })),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", Some(false), Some(Applier::NotAgent)),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "", Some(true), Some(Applier::NotAgent)),
            (FsGroupPolicy::None, "ext4", Some(true), Some(Applier::NotAgent)),
            // The claim is missing: unknown, unless the modes do not matter.
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", None, None),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "", None, Some(Applier::NotAgent)),
            (FsGroupPolicy::File, "ext4", None, Some(Applier::Agent { group: 7 })),
        ] {
            let volume = volume(fs_type);
            let mut policy = DriverPolicy::default();
            policy.fs_group_policy = fs_group_policy;
            let found = applier_for_modes(&volume, &asks, &policy, Some(&NodeCapabilities::default()), once);
            assert_eq!(found, expected, "{fs_group_policy:?} {fs_type:?} {once:?}");
            let mut able = NodeCapabilities::default();
            able.volume_mount_group = true;
            assert_eq!(
                applier_for_modes(&volume, &asks, &policy, Some(&able), once),
                Some(Applier::NotAgent)
            );
        }
    }

    #[test]
    fn agent_applies_if_requested_allowed_and_not_by_driver() {
        let key =
            VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new("v").unwrap() };
        let volume = |access| VolumeSpec::builder(key.clone(), access, AccessMode::SingleNodeWriter);
        let ext4 = || Access::Filesystem { fs_type: "ext4".into(), mount_flags: Vec::new() };
        let plain = volume(ext4()).build().unwrap();
        let target = MountPath::new("/pods/9f0c/mount").unwrap();
        let none = ConsumerSpec::new(ConsumerId::new("9f0c/data").unwrap(), target);
        let asks = none.clone().fs_group(7);
        let mut never = DriverPolicy::default();
        never.fs_group_policy = FsGroupPolicy::None;
        let cannot = NodeCapabilities::default();
        let mut can = cannot;
        can.volume_mount_group = true;
        let default = DriverPolicy::default();
        let here = Applier::Agent { group: 7 };
        assert_eq!(applier(&plain, &asks, &default, Some(&cannot)), here);
        assert_eq!(applier(&plain, &asks, &default, Some(&can)), Applier::NotAgent);
        assert_eq!(applier(&plain, &asks, &default, None), Applier::Unknown);
        // The files for a pod without an fsGroup stay unchanged, even if the volume was staged for the group of
        // another pod.
        let of_another = volume(ext4()).fs_group(9).build().unwrap();
        assert_eq!(applier(&of_another, &none, &default, Some(&cannot)), Applier::NotAgent);
        assert_eq!(applier(&of_another, &asks, &default, Some(&cannot)), here);
        for (volume, consumer, policy) in [
            (plain.clone(), asks.clone().read_only(true), &default),
            (volume(ext4()).read_only(true).build().unwrap(), asks.clone(), &default),
            (volume(Access::filesystem()).build().unwrap(), asks.clone(), &default),
            (volume(Access::Block).build().unwrap(), none.clone(), &default),
            (plain.clone(), asks, &never),
        ] {
            for driver in [None, Some(&cannot), Some(&can)] {
                assert_eq!(
                    applier(&volume, &consumer, policy, driver),
                    Applier::NotAgent,
                    "{volume:?} {consumer:?}"
                );
            }
        }
    }
}
