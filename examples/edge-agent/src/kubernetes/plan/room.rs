//! The size of a set, and the consumers that are refused when it is full. No I/O.
//!
//! A set that exceeds a bound is refused as a whole: then no pod of the node could get or release a volume. The previous set
//! was within the bounds, so its consumers stay.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::DriverName;
use volume_manager::VolumeKey;
use volume_manager::message::{MAX_POLICIES, MAX_REQUEST_BYTES, MAX_VOLUME_BYTES};

/// New consumers leave a quarter of the bytes to existing ones, which grow with their attachments and metadata.
const MAX_BYTES: usize = MAX_REQUEST_BYTES - MAX_REQUEST_BYTES / 4;

/// The same for one volume with its consumers.
const MAX_BYTES_OF_ONE: usize = MAX_VOLUME_BYTES - MAX_VOLUME_BYTES / 4;

/// Why a consumer is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The set would have too many bytes.
    #[error(
        "the volumes of this node would have {found} bytes with it; at most {MAX_BYTES} are taken: take pods from the node"
    )]
    Set {
        /// How many.
        found: usize,
    },
    /// The volume would have too many bytes.
    #[error(
        "{key} would have {found} bytes with this pod; at most {MAX_BYTES_OF_ONE} are taken: take other pods of it from this node"
    )]
    Volume {
        /// The volume.
        key: VolumeKey,
        /// How many.
        found: usize,
    },
    /// Too many drivers.
    #[error(
        "{driver} would be one driver more than the {MAX_POLICIES} that the pods of a node may use: take pods from it"
    )]
    Drivers {
        /// One more.
        driver: DriverName,
    },
}

/// The bytes of a consumer and its objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub(super) consumer: usize,
    /// Of its volume, which counts once.
    pub(super) volume: usize,
    /// Of what is known of the driver, which counts once.
    pub(super) policy: usize,
}

/// What is in a set so far.
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

    /// Counts one more consumer of a volume.
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
    /// If a set with it would exceed a bound, or could when it grows.
    pub(super) fn for_one_more(&self, key: &VolumeKey, bytes: Bytes) -> Result<(), Full> {
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
        if of_volume > MAX_BYTES_OF_ONE {
            return Err(Full::Volume { key: key.clone(), found: of_volume });
        }
        if found > MAX_BYTES { Err(Full::Set { found }) } else { Ok(()) }
    }

    /// Counts what is known of a driver that no pod uses, if there is room for it.
    pub(super) fn takes_policy(&mut self, driver: &DriverName, bytes: usize) -> bool {
        let takes = self.drivers.len() < MAX_POLICIES && self.bytes + bytes <= MAX_BYTES;
        if takes && self.drivers.insert(driver.clone()) {
            self.bytes += bytes;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use volume_manager::message::{DesiredSet, Request};

    use super::super::tests::{DRIVER, driver, of_claim, planned, pod};
    use super::super::{Place, Plan};
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

    /// The set as the node has it from its disk.
    fn read_back(plan: &Plan) -> DesiredSet {
        assert_eq!(Request::decode(&plan.set.encode()), Ok(Request::Desired(plan.set.clone())));
        plan.set.clone()
    }

    fn has(plan: &Plan, name: &str) -> bool {
        let of_pod = plan.pod_volumes.iter().find(|volume| volume.status.pod == name);
        matches!(of_pod.unwrap().place, Place::At { .. })
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
        let turned_away = plan.pod_volumes.iter().filter_map(|volume| match &volume.place {
            Place::Nowhere(why) => Some(why),
            Place::At { .. } => None,
        });
        let turned_away: Vec<_> = turned_away.collect();
        assert!(!turned_away.is_empty() && turned_away.iter().all(|why| why.contains("at most")));
        // The set converges, and its consumers stay when more arrive.
        assert_eq!(planned(kinds.clone(), &before, &[]).set, before);
        let more = (0..80).map(|number| of_one(&format!("Z-{number}"), 10 << 10));
        let plan = planned(kinds.into_iter().chain(more), &before, &[]);
        assert!(before.volumes.iter().all(|volume| read_back(&plan).volumes.contains(volume)));
    }

    #[test]
    fn unknown_drivers_do_not_starve_others() {
        let unheard = |number: usize| {
            let volume = inline(&format!("d{number}.example"), 1);
            Kind::Pod(pod(&format!("a-{number:03}"), [volume]))
        };
        let first = of_one("z", 1);
        let before = planned(once(first.clone()), &DesiredSet::new(1, Vec::new()), &[]).set;
        let plan = planned((0..2 * MAX_POLICIES).map(unheard).chain(once(first)), &before, &[]);
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
