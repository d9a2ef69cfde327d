//! Which volumes are to be given to which groups. No I/O.

use std::collections::BTreeMap;

use volume_manager::driver::{
    Access, ConsumerSpec, DriverPolicy, FsGroupPolicy, MountPath, NodeCapabilities, OwnershipChange,
    VolumeSpec,
};
use volume_manager::{ConsumerId, VolumeKey};

use super::super::plan::{Place, Plan};
use super::super::status::{Seen, is_published};
use super::tree::Gift;

/// A pod's volume that is to be a group's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Wish {
    /// The volume.
    pub(super) key: VolumeKey,
    /// Under which name the pod has it.
    pub(super) consumer: ConsumerId,
    /// Where it is.
    pub(super) target: MountPath,
    /// Whom it is given to.
    pub(super) gift: Gift,
}

/// What is not known of a consumer, so that what was wanted of it stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Unsure {
    /// Whether its driver does it: it has not answered.
    Driver,
    /// Whether its volume is one for one node among others: its claim or its PersistentVolume cannot be found for now.
    Modes,
}

/// The wishes of all pods whose volume is published, each consumer once; and the consumers of which something is not known.
pub(in super::super) fn wishes(plan: &Plan, seen: &Seen) -> (Vec<Wish>, BTreeMap<ConsumerId, Unsure>) {
    let volumes: BTreeMap<_, _> = plan.set.volumes.iter().map(|volume| (volume.spec.key(), volume)).collect();
    let (mut wishes, mut unsure) = (BTreeMap::new(), BTreeMap::new());
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
        let Some(found) = giver_of(&volume.spec, spec, &policy, can, once) else {
            unsure.insert(consumer.clone(), Unsure::Modes);
            continue;
        };
        match found {
            Giver::Nobody => {}
            Giver::Unknown => drop(unsure.insert(consumer.clone(), Unsure::Driver)),
            Giver::Here { group } => {
                let gift = Gift { group, only_if_root_differs: planned.on_root_mismatch };
                let (key, consumer, target) = (key.clone(), consumer.clone(), spec.target_path().clone());
                wishes.insert(consumer.clone(), Wish { key, consumer, target, gift });
            }
        }
    }
    (wishes.into_values().collect(), unsure)
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

/// Who gives the files of a pod's volume to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Giver {
    /// The driver, or nobody is to.
    Nobody,
    /// The driver has not said what it can do.
    Unknown,
    Here {
        group: u32,
    },
}

/// Who gives them, where one of the volume's modes is for one node, or none is; nobody knows if that counts and is not known.
fn giver_of(
    volume: &VolumeSpec,
    consumer: &ConsumerSpec,
    policy: &DriverPolicy,
    driver: Option<&NodeCapabilities>,
    once: Option<bool>,
) -> Option<Giver> {
    let mut of_one = policy.clone();
    of_one.fs_group_policy = of_one_node(policy.fs_group_policy, volume);
    let [others, one] = [policy, &of_one].map(|policy| giver(volume, consumer, policy, driver));
    match once {
        Some(true) => Some(one),
        Some(false) => Some(others),
        None => (one == others).then_some(one),
    }
}

fn giver(
    volume: &VolumeSpec,
    consumer: &ConsumerSpec,
    policy: &DriverPolicy,
    driver: Option<&NodeCapabilities>,
) -> Giver {
    let change = |driver: &NodeCapabilities| policy.ownership_change(volume, consumer, driver);
    // A pod that asks for none leaves the files to who has them.
    if consumer.own_fs_group().is_none() {
        return Giver::Nobody;
    }
    // If it cannot, the most is to be done here.
    let OwnershipChange::Caller { group } = change(&NodeCapabilities::default()) else {
        return Giver::Nobody;
    };
    match driver {
        None => Giver::Unknown,
        Some(driver) if change(driver) == (OwnershipChange::Caller { group }) => Giver::Here { group },
        Some(_) => Giver::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};
    use volume_manager::driver::AccessMode;

    use super::*;

    #[test]
    fn a_policy_for_volumes_of_one_node_holds_for_one_that_many_nodes_may_have_too() {
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
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", Some(true), Some(Giver::Here { group: 7 })),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", Some(false), Some(Giver::Nobody)),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "", Some(true), Some(Giver::Nobody)),
            (FsGroupPolicy::None, "ext4", Some(true), Some(Giver::Nobody)),
            // The claim is not found for now: nobody knows, unless it does not matter.
            (FsGroupPolicy::ReadWriteOnceWithFsType, "ext4", None, None),
            (FsGroupPolicy::ReadWriteOnceWithFsType, "", None, Some(Giver::Nobody)),
            (FsGroupPolicy::File, "ext4", None, Some(Giver::Here { group: 7 })),
        ] {
            let volume = volume(fs_type);
            let mut policy = DriverPolicy::default();
            policy.fs_group_policy = fs_group_policy;
            let found = giver_of(&volume, &asks, &policy, Some(&NodeCapabilities::default()), once);
            assert_eq!(found, expected, "{fs_group_policy:?} {fs_type:?} {once:?}");
            let mut able = NodeCapabilities::default();
            able.volume_mount_group = true;
            assert_eq!(giver_of(&volume, &asks, &policy, Some(&able), once), Some(Giver::Nobody));
        }
    }

    #[test]
    fn files_are_given_here_if_the_pod_asks_the_policy_lets_and_the_driver_cannot() {
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
        let here = Giver::Here { group: 7 };
        assert_eq!(giver(&plain, &asks, &default, Some(&cannot)), here);
        assert_eq!(giver(&plain, &asks, &default, Some(&can)), Giver::Nobody);
        assert_eq!(giver(&plain, &asks, &default, None), Giver::Unknown);
        // Whoever asks for nothing gets nothing, though the volume was staged for the group of another pod.
        let of_another = volume(ext4()).fs_group(9).build().unwrap();
        assert_eq!(giver(&of_another, &none, &default, Some(&cannot)), Giver::Nobody);
        assert_eq!(giver(&of_another, &asks, &default, Some(&cannot)), here);
        for (volume, consumer, policy) in [
            (plain.clone(), asks.clone().read_only(true), &default),
            (volume(ext4()).read_only(true).build().unwrap(), asks.clone(), &default),
            (volume(Access::filesystem()).build().unwrap(), asks.clone(), &default),
            (volume(Access::Block).build().unwrap(), none.clone(), &default),
            (plain.clone(), asks, &never),
        ] {
            for driver in [None, Some(&cannot), Some(&can)] {
                assert_eq!(
                    giver(&volume, &consumer, policy, driver),
                    Giver::Nobody,
                    "{volume:?} {consumer:?}"
                );
            }
        }
    }
}
