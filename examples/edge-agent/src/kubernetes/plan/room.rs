//! The size of a set, and the consumers that are refused when it is full. No I/O.
//!
//! A set that exceeds a bound is refused as a whole: then no pod of the node could get or release a volume. The previous set
//! was within the bounds, so its consumers stay.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::DriverName;
use volume_manager::VolumeKey;
use volume_manager::advanced::message::{MAX_POLICIES, MAX_REQUEST_BYTES, MAX_VOLUME_BYTES};

/// The maximum size in bytes of a set with a new consumer. The rest is for existing ones, whose metadata may grow.
const MAX_BYTES: usize = MAX_REQUEST_BYTES - MAX_REQUEST_BYTES / 4;

/// The maximum size in bytes of a volume with a new consumer and the existing ones.
const MAX_BYTES_OF_VOLUME: usize = MAX_VOLUME_BYTES - MAX_VOLUME_BYTES / 4;

/// Why a consumer is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The set would have too many bytes.
    #[error(
        "the volumes of this node would have {found} bytes with this pod; expected at most {MAX_BYTES}: move pods to other nodes"
    )]
    Set { found: usize },
    /// The volume would have too many bytes.
    #[error(
        "{key} would have {found} bytes with this pod; expected at most {MAX_BYTES_OF_VOLUME}: move other pods of it to other nodes"
    )]
    Volume { key: VolumeKey, found: usize },
    /// Too many drivers.
    #[error(
        "the pods of this node already use {MAX_POLICIES} drivers, which is the maximum; move pods to other nodes to use {driver}"
    )]
    Drivers {
        /// The driver of the refused consumer.
        driver: DriverName,
    },
}

/// The encoded sizes in bytes of a consumer, its volume and its driver's policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub(super) consumer: usize,
    /// The size of the volume, which counts once for all consumers.
    pub(super) volume: usize,
    /// The size of the driver's policy, which counts once for all volumes.
    pub(super) policy: usize,
}

/// The size of a set that is being planned.
#[derive(Debug, Default)]
pub(super) struct Room {
    bytes: usize,
    /// The bytes of each volume with its consumers.
    volumes: BTreeMap<VolumeKey, usize>,
    drivers: BTreeSet<DriverName>,
}

impl Room {
    /// Whether a volume is counted already.
    pub(super) fn has(&self, key: &VolumeKey) -> bool {
        self.volumes.contains_key(key)
    }

    /// Adds a consumer of a volume.
    pub(super) fn add(&mut self, key: &VolumeKey, bytes: Bytes) {
        if self.drivers.insert(key.driver.clone()) {
            self.bytes += bytes.policy;
        }
        match self.volumes.get_mut(key) {
            Some(known) => *known += bytes.consumer,
            None => {
                self.volumes.insert(key.clone(), bytes.volume + bytes.consumer);
                self.bytes += bytes.volume;
            }
        }
        self.bytes += bytes.consumer;
    }

    /// Checks that there is room for a new consumer of a volume.
    ///
    /// # Errors
    /// If the set would exceed a bound with the consumer, or could exceed one later.
    pub(super) fn check_new(&self, key: &VolumeKey, bytes: Bytes) -> Result<(), Full> {
        let mut found = self.bytes + bytes.consumer;
        if !self.drivers.contains(&key.driver) {
            if self.drivers.len() >= MAX_POLICIES {
                return Err(Full::Drivers { driver: key.driver.clone() });
            }
            found += bytes.policy;
        }
        let mut of_volume = bytes.consumer;
        match self.volumes.get(key) {
            Some(known) => of_volume += known,
            None => {
                of_volume += bytes.volume;
                found += bytes.volume;
            }
        }
        if of_volume > MAX_BYTES_OF_VOLUME {
            return Err(Full::Volume { key: key.clone(), found: of_volume });
        }
        if found > MAX_BYTES { Err(Full::Set { found }) } else { Ok(()) }
    }

    /// Adds the policy of a driver that no pod uses, if there is room. Returns whether there is.
    pub(super) fn add_policy(&mut self, driver: &DriverName, bytes: usize) -> bool {
        let has_room = self.drivers.len() < MAX_POLICIES && self.bytes + bytes <= MAX_BYTES;
        if has_room && self.drivers.insert(driver.clone()) {
            self.bytes += bytes;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use volume_manager::advanced::message::{DesiredSet, Request};

    use super::super::tests::{DRIVER, driver, of_claim, planned, pod};
    use super::super::{Assignment, Plan};
    use super::*;
    use edge_csi_common::kubernetes::message::object::Kind;
    use edge_csi_common::kubernetes::message::{Claim, InlineVolume, PersistentVolume, Pod, PodVolume};

    const BIG: usize = 60 << 10;

    fn inline(driver: &str, bytes: usize) -> PodVolume {
        let volume_attributes = [("a".to_owned(), "x".repeat(bytes))].into();
        let inline = InlineVolume { driver: driver.into(), volume_attributes, ..InlineVolume::default() };
        PodVolume { name: "scratch".into(), inline: Some(inline), ..PodVolume::default() }
    }

    fn of_one(name: &str, bytes: usize) -> Kind {
        Kind::Pod(pod(name, [inline(DRIVER, bytes)]))
    }

    /// Returns the set of a plan, after a check that it survives encoding.
    fn read_back(plan: &Plan) -> DesiredSet {
        assert_eq!(Request::decode(&plan.set.encode()), Ok(Request::Desired(plan.set.clone())));
        plan.set.clone()
    }

    fn has(plan: &Plan, name: &str) -> bool {
        let of_pod = plan.pod_volumes.iter().find(|volume| volume.status.pod == name);
        matches!(of_pod.unwrap().assignment, Assignment::Assigned { .. })
    }

    #[test]
    fn large_volumes_of_one_tenant_do_not_starve_others() {
        let nothing = DesiredSet::new(1, Vec::new());
        let first = of_one("z-had", 1 << 10);
        let before = planned(once(first.clone()), &nothing, &[]).set;
        let large = (0..80).map(|number| of_one(&format!("a-large-{number}"), BIG));
        let kinds: Vec<_> = once(first).chain(large).chain(once(of_one("z-new", 1 << 10))).collect();
        let plan = planned(kinds.clone(), &before, &[]);
        let before = read_back(&plan);
        assert!(has(&plan, "z-had") && has(&plan, "z-new"));
        let refused = plan.pod_volumes.iter().filter_map(|volume| match &volume.assignment {
            Assignment::Unassigned(why) => Some(why),
            Assignment::Assigned { .. } => None,
        });
        let refused: Vec<_> = refused.collect();
        assert!(!refused.is_empty() && refused.iter().all(|why| why.contains("at most")));
        // The set converges, and its consumers stay when more pods are added.
        assert_eq!(planned(kinds.clone(), &before, &[]).set, before);
        let more = (0..80).map(|number| of_one(&format!("Z-{number}"), 10 << 10));
        let plan = planned(kinds.into_iter().chain(more), &before, &[]);
        assert!(before.volumes.iter().all(|volume| read_back(&plan).volumes.contains(volume)));
    }

    #[test]
    fn unknown_drivers_do_not_starve_others() {
        let unknown_driver = |number: usize| {
            let volume = inline(&format!("d{number}.example"), 1);
            Kind::Pod(pod(&format!("a-{number:03}"), [volume]))
        };
        let first = of_one("z", 1);
        let before = planned(once(first.clone()), &DesiredSet::new(1, Vec::new()), &[]).set;
        let plan = planned((0..2 * MAX_POLICIES).map(unknown_driver).chain(once(first)), &before, &[]);
        assert!(has(&plan, "z") && !has(&plan, "a-127"));
        assert_eq!(read_back(&plan).policies.len(), MAX_POLICIES);
    }

    #[test]
    fn bounds_the_bytes_of_a_volume_with_many_pods() {
        let claim = Claim { uid: "c".into(), ..kind_of_claim() };
        let volume = PersistentVolume {
            name: "pv".into(),
            driver: DRIVER.into(),
            volume_handle: "h1".into(),
            claim_uid: "c".into(),
            access_modes: vec!["ReadWriteMany".into()],
            volume_attributes: [("a".to_owned(), "x".repeat(BIG))].into(),
            ..PersistentVolume::default()
        };
        let pods = (0..256).map(|number| {
            let uid = format!("{number:0>100}");
            let name = format!("{number:0>250}");
            let of_claim = [of_claim("v", "data")];
            Kind::Pod(Pod { uid, service_account: "s".repeat(250), ..pod(&name, of_claim) })
        });
        let others = [Kind::Claim(claim), Kind::PersistentVolume(volume), Kind::Driver(driver(false))];
        let plan = planned(others.into_iter().chain(pods), &DesiredSet::new(1, Vec::new()), &[]);
        let consumers = read_back(&plan).volumes[0].consumers.len();
        assert!((100..256).contains(&consumers), "{consumers}");
    }

    fn kind_of_claim() -> Claim {
        Claim { namespace: "ns".into(), name: "data".into(), volume: "pv".into(), ..Claim::default() }
    }
}
