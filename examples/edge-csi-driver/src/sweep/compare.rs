//! What is left over: the differences between the placements, the PersistentVolumes and the volumes that the nodes list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use csi_proxy::NodeId;
use csi_proxy::advanced::call::Subject;
use csi_proxy::advanced::routing::{Row, Status};

/// What the three places say. Each is consistent in itself; they are read one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    /// The placements of the driver.
    pub(super) placements: Vec<Row>,
    /// The driver's PersistentVolumes: their names by the ids of their volumes.
    pub(super) persistent_volumes: BTreeMap<String, String>,
    /// The ids that `ListVolumes` returns; `None` if the driver cannot list.
    pub(super) listed: Option<BTreeSet<String>>,
}

/// A volume that one place has and another has not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeftOver {
    /// A volume without a PersistentVolume: no claim uses it, and no component will delete it.
    Unused { id: String, name: Option<String>, node: NodeId },
    /// A volume on a node, without a placement and without a PersistentVolume.
    Unknown { id: String },
    /// A CreateVolume that has not ended. Its caller repeats it, or is not there any more.
    Unfinished { name: String, node: NodeId },
    /// A volume that its node does not list.
    Absent { id: String, node: NodeId, persistent_volume: String },
    /// A PersistentVolume of a volume that has no placement and that no node lists.
    Lost { id: String, persistent_volume: String },
}

impl fmt::Display for LeftOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused { id, name: Some(name), node } => {
                write!(f, "unused: volume {id:?} named {name:?} on node {node} has no PersistentVolume")
            }
            Self::Unused { id, name: None, node } => {
                write!(f, "unused: volume {id:?} on node {node} has no PersistentVolume")
            }
            Self::Unknown { id } => {
                write!(
                    f,
                    "unknown: a node lists volume {id:?}, which has no placement and no PersistentVolume"
                )
            }
            Self::Unfinished { name, node } => {
                write!(f, "unfinished: CreateVolume of {name:?} on node {node} has not ended")
            }
            Self::Absent { id, node, persistent_volume } => {
                write!(
                    f,
                    "absent: node {node} does not list volume {id:?} of PersistentVolume {persistent_volume}"
                )
            }
            Self::Lost { id, persistent_volume } => write!(
                f,
                "lost: volume {id:?} of PersistentVolume {persistent_volume} has no placement, and no node lists it"
            ),
        }
    }
}

/// Returns what is left over, in the order of its kinds. Rows that cannot be read, and snapshots and groups, are passed over.
pub(super) fn compare(survey: &Survey) -> BTreeSet<LeftOver> {
    let Survey { placements, persistent_volumes, listed } = survey;
    let is_listed = |id: &str| listed.as_ref().is_none_or(|listed| listed.contains(id));
    let (mut found, mut placed) = (BTreeSet::new(), BTreeSet::new());
    for row in placements {
        let name = match &row.key {
            Subject::VolumeName(name) => Some(name.to_string()),
            Subject::Volume(_) => None,
            Subject::Snapshot(_) | Subject::GroupSnapshot(_) => continue,
        };
        let Ok(placement) = &row.placement else { continue };
        let node = placement.node.clone();
        match (&placement.status, name) {
            (Status::Created { id }, name) => {
                let id = id.to_string();
                placed.insert(id.clone());
                match persistent_volumes.get(&id) {
                    None => drop(found.insert(LeftOver::Unused { id, name, node })),
                    Some(volume) if !is_listed(&id) => {
                        found.insert(LeftOver::Absent { id, node, persistent_volume: volume.clone() });
                    }
                    Some(_) => {}
                }
            }
            (Status::Pending, Some(name)) => drop(found.insert(LeftOver::Unfinished { name, node })),
            _ => {}
        }
    }
    let volumes = persistent_volumes.iter().filter(|(id, _)| !placed.contains(*id) && !is_listed(id));
    found
        .extend(volumes.map(|(id, name)| LeftOver::Lost { id: id.clone(), persistent_volume: name.clone() }));
    let listed = listed.iter().flatten();
    let unknown = listed.filter(|id| !placed.contains(*id) && !persistent_volumes.contains_key(*id));
    found.extend(unknown.map(|id| LeftOver::Unknown { id: id.clone() }));
    found
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use csi_proxy::advanced::call::Digest;
    use csi_proxy::advanced::routing::{Defect, Placement, Revision};

    use super::*;

    fn node() -> NodeId {
        NodeId::new("edge-1").unwrap()
    }

    fn row(key: Subject, status: Status) -> Row {
        let placement = Placement { node: node(), digest: Digest::from_bytes([0; 32]), status };
        Row { key, revision: Revision("1".into()), placement: Ok(placement) }
    }

    fn created(name: &str, id: &str) -> Row {
        row(Subject::VolumeName(name.into()), Status::Created { id: id.into() })
    }

    fn survey(placements: Vec<Row>, persistent_volumes: &[&str], listed: Option<&[&str]>) -> Survey {
        let volumes = persistent_volumes.iter().map(|id| ((*id).to_owned(), format!("pv-{id}")));
        let listed = listed.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
        Survey { placements, persistent_volumes: volumes.collect(), listed }
    }

    #[test]
    fn nothing_is_left_over_where_all_places_agree() {
        let rows = vec![
            created("pvc-1", "a"),
            row(Subject::Volume("static".into()), Status::Created { id: "static".into() }),
            row(
                Subject::VolumeName("pvc-2".into()),
                Status::Deleted { id: "b".into(), at: SystemTime::now() },
            ),
            row(Subject::VolumeName("pvc-3".into()), Status::Lost { id: "c".into() }),
            row(Subject::Snapshot("s".into()), Status::Created { id: "s".into() }),
        ];
        assert_eq!(compare(&survey(rows.clone(), &["a", "static"], Some(&["a", "static"]))), [].into());
        // A driver that cannot list proves nothing about its nodes.
        assert_eq!(compare(&survey(rows, &["a", "static", "new"], None)), [].into());
    }

    /// Each row is a difference, and the only one.
    #[test]
    fn each_difference_has_its_kind() {
        let (id, pv) = ("a".to_owned(), "pv-a".to_owned());
        let unused = |name: Option<&str>| LeftOver::Unused {
            id: id.clone(),
            name: name.map(str::to_owned),
            node: node(),
        };
        let table = [
            (survey(vec![created("pvc-1", "a")], &[], Some(&["a"])), unused(Some("pvc-1"))),
            (
                survey(vec![row(Subject::Volume("a".into()), Status::Created { id: "a".into() })], &[], None),
                unused(None),
            ),
            // Without a PersistentVolume too: an unused volume need not be listed.
            (survey(vec![created("pvc-1", "a")], &[], Some(&[])), unused(Some("pvc-1"))),
            (survey(vec![], &[], Some(&["a"])), LeftOver::Unknown { id: id.clone() }),
            (
                survey(vec![row(Subject::VolumeName("pvc-1".into()), Status::Pending)], &[], Some(&[])),
                LeftOver::Unfinished { name: "pvc-1".to_owned(), node: node() },
            ),
            (
                survey(vec![created("pvc-1", "a")], &["a"], Some(&[])),
                LeftOver::Absent { id: id.clone(), node: node(), persistent_volume: pv.clone() },
            ),
            (
                survey(vec![], &["a"], Some(&[])),
                LeftOver::Lost { id: id.clone(), persistent_volume: pv.clone() },
            ),
            (
                survey(
                    vec![row(
                        Subject::VolumeName("pvc-1".into()),
                        Status::Deleted { id: "a".into(), at: SystemTime::now() },
                    )],
                    &["a"],
                    Some(&[]),
                ),
                LeftOver::Lost { id: id.clone(), persistent_volume: pv.clone() },
            ),
        ];
        for (survey, expected) in table {
            assert_eq!(compare(&survey), [expected].into(), "{survey:?}");
        }
    }

    /// A row that cannot be read may be that of any volume, so that a listed one is still reported as unknown: the operator
    /// repairs the row.
    #[test]
    fn rows_that_cannot_be_read_prove_nothing() {
        let damaged = Row {
            key: Subject::VolumeName("pvc-1".into()),
            revision: Revision("1".into()),
            placement: Err(Defect::Field { field: "node" }),
        };
        let found = compare(&survey(vec![damaged], &["a"], Some(&["a", "b"])));
        assert_eq!(found, [LeftOver::Unknown { id: "b".to_owned() }].into());
    }
}
