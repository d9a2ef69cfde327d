//! Random changes of objects, and the invariants of every plan.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use volume_manager::advanced::message::Request;

use super::super::*;
use super::{
    DRIVER, attachment, claim, directory, driver, in_use, metadata, of_claim, persistent_volume, pod,
};
use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{InlineVolume, ObjectKey, Pod, PodVolume};

const WALKS: u64 = 300;
const STEPS: u64 = 60;

/// One object of a small cluster, or another version of it.
fn some_object(rng: &mut Rng) -> Kind {
    let name = ["a", "b", "c"][rng.usize(..3)];
    match rng.usize(..6) {
        0 | 1 => {
            let mut volumes = vec![of_claim("v", name)];
            if name == "b" {
                volumes.push(of_claim("w", "a"));
            }
            if name == "c" {
                let inline = InlineVolume { driver: DRIVER.into(), ..InlineVolume::default() };
                volumes.push(PodVolume {
                    name: "scratch".into(),
                    inline: Some(inline),
                    ..PodVolume::default()
                });
            }
            let (ended, deleting) = (rng.usize(..4) == 0, rng.usize(..3) == 0);
            let uid = format!("uid-{name}-{}", rng.usize(..2));
            Kind::Pod(Pod { ended, deleting, uid, ..pod(name, volumes) })
        }
        2 => Kind::Claim(claim(name, if rng.usize(..3) == 0 { "" } else { name })),
        3 => Kind::PersistentVolume(persistent_volume(name, name, name)),
        4 => Kind::Attachment(attachment(name, rng.usize(..2) == 0)),
        _ => Kind::Driver(driver(rng.usize(..2) == 0)),
    }
}

fn consumers(set: &DesiredSet) -> BTreeSet<&str> {
    set.volumes.iter().flat_map(|volume| &volume.consumers).map(|consumer| consumer.id().as_str()).collect()
}

/// Which consumers the pods that live have, by what they are called.
fn of_live_pods(metadata: &Metadata) -> BTreeMap<String, (&Pod, &PodVolume)> {
    let live = metadata.pods().filter(|pod| !pod.ended);
    live.flat_map(|pod| {
        pod.volumes.iter().map(move |volume| (format!("{}/{}", pod.uid, volume.name), (pod, volume)))
    })
    .collect()
}

/// Whether all that a pod's volume needs is there.
fn can_be_found(metadata: &Metadata, pod: &Pod, volume: &PodVolume) -> bool {
    volume.inline.is_some()
        || metadata.claim(&pod.namespace, &volume.claim).is_some_and(|claim| {
            !claim.volume.is_empty() && metadata.persistent_volume(&claim.volume).is_some()
        })
}

fn walk(seed: u64) {
    let replay = format!("seed {seed}: EDGE_CSI_PLAN_SEED={seed} cargo test -p edge-agent plan::tests::walk");
    let mut rng = Rng::with_seed(seed);
    let mut objects: BTreeMap<ObjectKey, Kind> = BTreeMap::new();
    let mut before = DesiredSet::new(1, Vec::new());
    for _ in 0..STEPS {
        let kind = some_object(&mut rng);
        let at = kind.key();
        if rng.usize(..3) == 0 {
            objects.remove(&at);
        } else {
            objects.insert(at, kind);
        }
        let mounted: BTreeSet<_> = before
            .volumes
            .iter()
            .filter(|volume| volume.spec.attach() == Attach::NotRequired || before.is_attached(&volume.spec))
            .map(|volume| volume.spec.key().clone())
            .filter(|_| rng.usize(..3) > 0)
            .collect();
        let metadata = metadata(objects.values().cloned());
        let marked: Vec<_> = ["a", "b", "c"].into_iter().filter(|_| rng.usize(..2) == 0).collect();
        let in_use = in_use(marked);
        let input = PlanInput { metadata: &metadata, before: &before, mounted: &mounted, in_use: &in_use };
        let found = plan(input, &directory());
        let (had, has, live) = (consumers(&before), consumers(&found.set), of_live_pods(&metadata));
        for id in &had {
            assert!(!live.contains_key(*id) || has.contains(id), "{replay}: {id} lost its volume");
        }
        for id in &has {
            assert!(live.contains_key(*id), "{replay}: {id} has a volume and was removed");
        }
        for (id, (pod, volume)) in &live {
            if can_be_found(&metadata, pod, volume) {
                assert!(has.contains(id.as_str()), "{replay}: {id} has no volume");
            } else {
                let unknown = found.unknown.iter().any(|unknown| unknown.as_str() == id);
                assert_eq!(unknown, !had.contains(id.as_str()), "{replay}: {id}");
            }
        }
        for volume in &found.set.volumes {
            let spec = &volume.spec;
            let as_before = before.volumes.iter().find(|before| before.spec.key() == spec.key());
            let was_attached = as_before.is_some_and(|volume| before.is_attached(&volume.spec));
            let may_be = in_use.has(spec.key()) || was_attached || mounted.contains(spec.key());
            assert!(may_be || !found.set.is_attached(spec), "{replay}: {} might be detached", spec.key());
            if let Some(as_before) = as_before.filter(|_| mounted.contains(spec.key())) {
                assert_eq!(as_before.spec.attach(), spec.attach(), "{replay}: {}", spec.key());
                let kept = !before.is_attached(&as_before.spec) || found.set.is_attached(spec);
                assert!(kept, "{replay}: {} is mounted and is to be detached", spec.key());
            }
        }
        assert_eq!(found.pod_volumes.len(), live.len(), "{replay}");
        assert_eq!(Request::decode(&found.set.encode()), Ok(Request::Desired(found.set.clone())), "{replay}");
        let again = plan(PlanInput { before: &found.set, ..input }, &directory());
        assert_eq!(again.set, found.set, "{replay}: it does not converge");
        before = found.set;
    }
}

#[test]
fn random_changes_keep_volumes_of_running_pods_only() {
    if let Some(seed) = std::env::var("EDGE_CSI_PLAN_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return walk(seed);
    }
    (0..WALKS).for_each(walk);
}
