//! Which volumes are to be given to which groups. No I/O.

use std::collections::BTreeMap;

use volume_manager::driver::{
    Access, ConsumerSpec, DriverPolicy, FsGroupPolicy, MountPath, NodeCapabilities, OwnershipChange,
    VolumeSpec,
};
use volume_manager::{ConsumerId, VolumeKey};

use super::super::plan::{Place, Plan};
use super::super::status::{Seen, is_published};
use super::tree::FsGroup;

/// A pod's volume that is to be a group's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct FsGroupJob {
    /// The volume.
    pub(super) key: VolumeKey,
    /// Under which name the pod has it.
    pub(super) consumer: ConsumerId,
    /// Where it is.
    pub(super) target: MountPath,
    /// The group.
    pub(super) fs_group: FsGroup,
}

/// What is not known of a consumer, so that what was wanted of it stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Unsure {
    /// Whether its driver does it: it has not answered.
    Driver,
    /// Whether its volume is one for one node among others: its claim or its PersistentVolume cannot be found for now.
    Modes,
}

/// The jobs of all published pod volumes, one for each consumer; and the consumers with unknown properties.
pub(in super::super) fn jobs(plan: &Plan, seen: &Seen) -> (Vec<FsGroupJob>, BTreeMap<ConsumerId, Unsure>) {
    let volumes: BTreeMap<_, _> = plan.set.volumes.iter().map(|volume| (volume.spec.key(), volume)).collect();
    let (mut jobs, mut unsure) = (BTreeMap::new(), BTreeMap::new());
    for planned in &plan.pod_volumes {
        let Place::At { key, consumer, unsure: lost } = &planned.place else { continue };
        let published = seen.volumes.get(key).is_some_and(|seen| is_published(seen, consumer));
        let Some(volume) = volumes.get(key).filter(|_| published) else { continue };
        let mut consumers = volume.consumers.iter();
        let Some(spec) = consumers.find(|spec| spec.id() == consumer) else { continue };
        let driver = seen.drivers.iter().find(|driver| driver.name == key.driver);
        let facts = driver.and_then(|driver| driver.facts.as_ref());
        let can = facts.map(|facts| &facts.capabilities.node);
        let policy = plan.set.policy(&key.driver);
        let once = lost.is_none().then_some(planned.read_write_once);
        let Some(found) = responsible_for_modes(&volume.spec, spec, &policy, can, once) else {
            unsure.insert(consumer.clone(), Unsure::Modes);
            continue;
        };
        match found {
            Responsible::None => {}
            Responsible::Unknown => drop(unsure.insert(consumer.clone(), Unsure::Driver)),
            Responsible::Agent { group } => {
                let fs_group = FsGroup { group, only_if_root_differs: planned.on_root_mismatch };
                let (key, consumer, target) = (key.clone(), consumer.clone(), spec.target_path().clone());
                jobs.insert(consumer.clone(), FsGroupJob { key, consumer, target, fs_group });
            }
        }
    }
    (jobs.into_values().collect(), unsure)
}

/// A policy for volumes of one node, where this one is such a volume among others: all of its modes count, as with kubelet.
fn of_one_node(policy: FsGroupPolicy, volume: &VolumeSpec) -> FsGroupPolicy {
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
enum Responsible {
    /// The driver, or none is required.
    None,
    /// The driver has not said what it can do.
    Unknown,
    Agent {
        group: u32,
    },
}

/// The responsible component if `once` is known: whether an access mode is for one node, or there is none. `None` if
/// it matters and is unknown.
fn responsible_for_modes(
    volume: &VolumeSpec,
    consumer: &ConsumerSpec,
    policy: &DriverPolicy,
    driver: Option<&NodeCapabilities>,
    once: Option<bool>,
) -> Option<Responsible> {
    let mut of_one = policy.clone();
    of_one.fs_group_policy = of_one_node(policy.fs_group_policy, volume);
    let [others, one] = [policy, &of_one].map(|policy| responsible(volume, consumer, policy, driver));
    match once {
        Some(true) => Some(one),
        Some(false) => Some(others),
        None => (one == others).then_some(one),
    }
}

fn responsible(
    volume: &VolumeSpec,
    consumer: &ConsumerSpec,
    policy: &DriverPolicy,
    driver: Option<&NodeCapabilities>,
) -> Responsible {
    let change = |driver: &NodeCapabilities| policy.ownership_change(volume, consumer, driver);
    // Without an fsGroup, the files are left unchanged.
    if consumer.own_fs_group().is_none() {
        return Responsible::None;
    }
    // If it cannot, the most is to be done here.
    let OwnershipChange::Caller { group } = change(&NodeCapabilities::default()) else {
        return Responsible::None;
    };
    match driver {
        None => Responsible::Unknown,
        Some(driver) if change(driver) == (OwnershipChange::Caller { group }) => Responsible::Agent { group },
        Some(_) => Responsible::None,
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
            (
                FsGroupPolicy::ReadWriteOnceWithFsType,
                "ext4",
                Some(true),
                Some(Responsible::Agent { group: 7 }),
            ),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", Some(false), Some(Responsible::None)),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "", Some(true), Some(Responsible::None)),
            (FsGroupPolicy::None, "ext4", Some(true), Some(Responsible::None)),
            // The claim is not found for now: unknown, unless it does not matter.
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", None, None),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "", None, Some(Responsible::None)),
            (FsGroupPolicy::File, "ext4", None, Some(Responsible::Agent { group: 7 })),
        ] {
            let volume = volume(fs_type);
            let mut policy = DriverPolicy::default();
            policy.fs_group_policy = fs_group_policy;
            let found =
                responsible_for_modes(&volume, &asks, &policy, Some(&NodeCapabilities::default()), once);
            assert_eq!(found, expected, "{fs_group_policy:?} {fs_type:?} {once:?}");
            let mut able = NodeCapabilities::default();
            able.volume_mount_group = true;
            assert_eq!(
                responsible_for_modes(&volume, &asks, &policy, Some(&able), once),
                Some(Responsible::None)
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
        let here = Responsible::Agent { group: 7 };
        assert_eq!(responsible(&plain, &asks, &default, Some(&cannot)), here);
        assert_eq!(responsible(&plain, &asks, &default, Some(&can)), Responsible::None);
        assert_eq!(responsible(&plain, &asks, &default, None), Responsible::Unknown);
        // A pod without an fsGroup is left alone, even if the volume was staged for the group of another pod.
        let of_another = volume(ext4()).fs_group(9).build().unwrap();
        assert_eq!(responsible(&of_another, &none, &default, Some(&cannot)), Responsible::None);
        assert_eq!(responsible(&of_another, &asks, &default, Some(&cannot)), here);
        for (volume, consumer, policy) in [
            (plain.clone(), asks.clone().read_only(true), &default),
            (volume(ext4()).read_only(true).build().unwrap(), asks.clone(), &default),
            (volume(Access::filesystem()).build().unwrap(), asks.clone(), &default),
            (volume(Access::Block).build().unwrap(), none.clone(), &default),
            (plain.clone(), asks, &never),
        ] {
            for driver in [None, Some(&cannot), Some(&can)] {
                assert_eq!(
                    responsible(&volume, &consumer, policy, driver),
                    Responsible::None,
                    "{volume:?} {consumer:?}"
                );
            }
        }
    }
}
