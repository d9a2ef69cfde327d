//! Conformance tests of the [`PlacementStore`] contract, for a custom store.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use super::{PlacementStore, Written};
use crate::call::NodeId;
use crate::call::{Digest, Subject};
pub use crate::relay::conformance::Violation;
use crate::routing::Claim;
use crate::routing::placements::{Change, Placement, Revision, Row, Status};

/// Checks the contract on an empty store. `reopen` opens the same store as a restarted process would.
///
/// # Errors
/// The first [`Violation`].
pub async fn check<S: PlacementStore>(mut reopen: impl FnMut() -> S) -> Result<(), Violation> {
    let of = |case| move |found| Violation { case, found };
    let rows = revisions(&mut reopen).await;
    let rows = rows.map_err(of("a write applies only to the revision that it expects"))?;
    decommissioned(&mut reopen).await.map_err(of("decommissioned nodes are kept until they are removed"))?;
    claims(&mut reopen).await.map_err(of("claims are kept until they are replaced or removed"))?;
    behaves_as_map(reopen, rows).await.map_err(of("the store is a map, over restarts too"))
}

/// Checks when a write applies, and returns the rows that are left.
async fn revisions<S: PlacementStore>(
    reopen: &mut impl FnMut() -> S,
) -> Result<BTreeMap<Subject, Placement>, String> {
    let (key, other) = (Subject::VolumeName("pvc-1".into()), Subject::Volume("pvc-1".into()));
    let store = reopen();
    expect("the rows of an empty store", &rows(&store).await?, &BTreeMap::new())?;
    let first = done(store.write(&create(key.clone(), placement(1)?)).await)?;
    let second = store.write(&create(key.clone(), placement(2)?)).await.map_err(text)?;
    let current = Row { key: key.clone(), revision: first.clone(), placement: Ok(placement(1)?) };
    expect("a second create", &second, &Written::Conflict(Some(current)))?;
    let late = store.write(&replace(other.clone(), first.clone(), placement(2)?)).await.map_err(text)?;
    expect("a replacement of nothing", &late, &Written::Conflict(None))?;
    let next = done(store.write(&replace(key.clone(), first.clone(), placement(2)?)).await)?;
    let current = Row { key: key.clone(), revision: next.clone(), placement: Ok(placement(2)?) };
    let old = store.write(&replace(key.clone(), first.clone(), placement(3)?)).await.map_err(text)?;
    expect("a replacement of an old revision", &old, &Written::Conflict(Some(current.clone())))?;
    let old = store.write(&remove(key.clone(), first.clone())).await.map_err(text)?;
    expect("a removal of an old revision", &old, &Written::Conflict(Some(current)))?;
    done(store.write(&remove(key.clone(), next.clone())).await)?;
    let absent = store.write(&remove(key.clone(), next.clone())).await.map_err(text)?;
    expect("a removal of nothing", &absent, &Written::Conflict(None))?;
    let again = done(store.write(&create(key.clone(), placement(3)?)).await)?;
    if again == first || again == next {
        return Err("a recreated row has an earlier revision".to_owned());
    }
    done(store.write(&create(other.clone(), placement(4)?)).await)?;
    drop(store);
    let expected = BTreeMap::from([(key, placement(3)?), (other, placement(4)?)]);
    expect("the rows after a restart", &rows(&reopen()).await?, &expected)?;
    Ok(expected)
}

/// Checks that decommissioned nodes are stored until they are recommissioned; both operations are idempotent.
async fn decommissioned<S: PlacementStore>(reopen: &mut impl FnMut() -> S) -> Result<(), String> {
    let node = NodeId::new("edge-1").map_err(text)?;
    for set in [true, true, false, false] {
        let store = reopen();
        store.set_decommissioned(&node, set).await.map_err(text)?;
        drop(store);
        let kept = reopen().decommissioned().await.map_err(text)?;
        let expected: Vec<_> = set.then(|| node.clone()).into_iter().collect();
        expect("the decommissioned nodes after a restart", &kept, &expected)?;
    }
    Ok(())
}

/// Checks that the claim of a node is stored until it is replaced or removed.
async fn claims<S: PlacementStore>(reopen: &mut impl FnMut() -> S) -> Result<(), String> {
    let node = NodeId::new("edge-1").map_err(text)?;
    let claim = |node_id: &str| Claim {
        node_id: node_id.to_owned(),
        segments: [("host".to_owned(), "edge-1".to_owned())].into(),
    };
    for claim in [Some(claim("1")), Some(claim("2")), None, None] {
        let store = reopen();
        store.set_claim(&node, claim.as_ref()).await.map_err(text)?;
        drop(store);
        let kept = reopen().claims().await.map_err(text)?;
        let expected: Vec<_> = claim.map(|claim| (node.clone(), Ok(claim))).into_iter().collect();
        expect("the claims after a restart", &kept, &expected)?;
    }
    Ok(())
}

/// Checks that the store behaves as a map over a random sequence of writes and restarts.
async fn behaves_as_map<S: PlacementStore>(
    mut reopen: impl FnMut() -> S,
    mut expected: BTreeMap<Subject, Placement>,
) -> Result<(), String> {
    let mut rng = 7_u64;
    let mut draw = |below: u64| {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (rng >> 33) % below
    };
    let mut store = reopen();
    for step in 0..200 {
        let id = "n".repeat(usize::try_from(draw(8) * 500 + 1).unwrap_or(1));
        let key = match draw(4) {
            0 => Subject::VolumeName(id.into()),
            1 => Subject::Volume(id.into()),
            2 => Subject::Snapshot(id.into()),
            _ => Subject::GroupSnapshot(id.into()),
        };
        let found = store.list().await.map_err(text)?.into_iter().find(|row| row.key == key);
        let new = placement(step)?;
        let change = match (found, draw(3)) {
            (None, _) => create(key.clone(), new),
            (Some(row), 0) => remove(key.clone(), row.revision),
            (Some(row), _) => replace(key.clone(), row.revision, new),
        };
        done(store.write(&change).await)?;
        let current = rows(&store).await?;
        match current.get(&key) {
            Some(found) => drop(expected.insert(key, found.clone())),
            None => drop(expected.remove(&key)),
        }
        expect("the rows after a write", &current, &expected)?;
        if draw(8) == 0 {
            drop(store);
            store = reopen();
        }
    }
    expect("the rows at the end", &rows(&store).await?, &expected)
}

fn create(key: Subject, placement: Placement) -> Change {
    Change { key, expected: None, placement: Some(placement) }
}

fn replace(key: Subject, revision: Revision, placement: Placement) -> Change {
    Change { key, expected: Some(revision), placement: Some(placement) }
}

fn remove(key: Subject, revision: Revision) -> Change {
    Change { key, expected: Some(revision), placement: None }
}

/// Placements that differ in every field.
fn placement(number: u64) -> Result<Placement, String> {
    let id = format!("vol-{number}").into_boxed_str();
    Ok(Placement {
        node: NodeId::new(format!("edge-{number}")).map_err(text)?,
        digest: Digest::from_bytes([u8::try_from(number % 256).unwrap_or_default(); 32]),
        status: match number % 4 {
            0 => Status::Pending,
            1 => Status::Created { id },
            2 => Status::Deleted { id, at: UNIX_EPOCH + Duration::from_secs(number) },
            _ => Status::Lost { id },
        },
    })
}

async fn rows(store: &impl PlacementStore) -> Result<BTreeMap<Subject, Placement>, String> {
    let rows = store.list().await.map_err(text)?;
    rows.into_iter().map(|row| Ok((row.key, row.placement.map_err(text)?))).collect()
}

fn done(written: Result<Written, super::StoreError>) -> Result<Revision, String> {
    match written.map_err(text)? {
        Written::Done(revision) => Ok(revision),
        Written::Conflict(row) => Err(format!("a valid write was rejected, the row is {row:?}")),
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: found {found:?}, expected {expected:?}")) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::super::{FaultyStore, MemoryStore, StoreError};
    use super::*;
    use crate::routing::placements::Defect;

    /// A violation of the contract.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Flaw {
        /// A create replaces the row that exists.
        CreatesTwice,
        /// A write ignores the revision that it expects.
        IgnoresRevisions,
        /// A conflict does not return the row.
        HidesTheRow,
        /// Volumes and names of volumes with the same text are one row.
        MixesKinds,
        /// A restart loses the rows.
        LosesRows,
        /// A decommissioned node is not stored.
        LosesDecommissioned,
        /// A recommissioned node stays decommissioned.
        KeepsDecommissioned,
        /// A claim is not stored.
        LosesClaims,
        /// A removed claim stays.
        KeepsClaims,
    }

    #[derive(Debug)]
    struct Flawed(MemoryStore, Flaw);

    #[async_trait]
    impl PlacementStore for Flawed {
        async fn list(&self) -> Result<Vec<Row>, StoreError> {
            self.0.list().await
        }

        async fn write(&self, change: &Change) -> Result<Written, StoreError> {
            let mut change = change.clone();
            if let (Flaw::MixesKinds, Subject::Volume(id)) = (self.1, &change.key) {
                change.key = Subject::VolumeName(id.clone());
            }
            let current = self.list().await?.into_iter().find(|row| row.key == change.key);
            if let (Flaw::CreatesTwice, None) | (Flaw::IgnoresRevisions, Some(_)) = (self.1, &change.expected)
                && let Some(row) = current
            {
                change.expected = Some(row.revision);
            }
            match (self.1, self.0.write(&change).await?) {
                (Flaw::HidesTheRow, Written::Conflict(_)) => Ok(Written::Conflict(None)),
                (_, written) => Ok(written),
            }
        }

        async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
            self.0.decommissioned().await
        }

        async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
            match (self.1, decommissioned) {
                (Flaw::LosesDecommissioned, true) | (Flaw::KeepsDecommissioned, false) => Ok(()),
                _ => self.0.set_decommissioned(node, decommissioned).await,
            }
        }

        async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError> {
            self.0.claims().await
        }

        async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError> {
            match (self.1, claim) {
                (Flaw::LosesClaims, Some(_)) | (Flaw::KeepsClaims, None) => Ok(()),
                _ => self.0.set_claim(node, claim).await,
            }
        }
    }

    #[tokio::test]
    async fn bad_stores_are_rejected() {
        for (flaw, rule) in [
            (Flaw::CreatesTwice, "a second create"),
            (Flaw::IgnoresRevisions, "a replacement of an old revision"),
            (Flaw::HidesTheRow, "a second create"),
            (Flaw::MixesKinds, "a replacement of nothing"),
            (Flaw::LosesRows, "the rows after a restart"),
            (Flaw::LosesDecommissioned, "the decommissioned nodes"),
            (Flaw::KeepsDecommissioned, "the decommissioned nodes"),
            (Flaw::LosesClaims, "the claims"),
            (Flaw::KeepsClaims, "the claims"),
        ] {
            let medium = MemoryStore::default();
            let reopen = || {
                let kept = if flaw == Flaw::LosesRows { MemoryStore::default() } else { medium.clone() };
                Flawed(kept, flaw)
            };
            let violation = check(reopen).await.unwrap_err();
            assert!(violation.to_string().contains(rule), "{flaw:?}: {violation}");
        }
    }

    #[tokio::test]
    async fn memory_stores_conform() {
        let memory = MemoryStore::default();
        check(|| memory.clone()).await.unwrap();
        let (faulty, _) = FaultyStore::new(MemoryStore::default());
        check(|| faulty.clone()).await.unwrap();
    }

    #[cfg(feature = "redb")]
    #[tokio::test]
    async fn redb_store_conforms() {
        let directory = tempfile::tempdir().unwrap();
        let driver = csi_proto::DriverName::new("csi-hostpath").unwrap();
        let open = || super::super::RedbStore::open(directory.path().join("proxy.redb"), &driver).unwrap();
        check(open).await.unwrap();
    }
}
