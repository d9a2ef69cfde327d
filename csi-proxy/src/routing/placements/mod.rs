//! Placements: the node of each volume name, and of everything else with an id.
//!
//! This module has no disk and no clock: a method returns a [`Change`], a
//! [`PlacementStore`](super::store::PlacementStore) makes it durable, and [`Placements::apply`] applies it.
//! Therefore memory is never ahead of the store.

mod record;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

pub use self::record::{Defect, Placement, Revision, Row, Status};
pub(super) use self::record::{seal, unseal};
use super::refusal::Refusal;
use super::request::VolumeRequest;
use super::selection::NodeSelector;
use crate::call::NodeId;
use crate::call::{Digest, Subject};

/// The default maximum number of placements: one for each volume, snapshot and group; each takes a few hundred bytes.
pub(crate) const DEFAULT_MAX_ROWS: usize = 400_000;

/// The default maximum number of placements of one node, so that one node cannot fill the table.
pub(crate) const DEFAULT_MAX_ROWS_OF_NODE: usize = 20_000;

/// How long a deletion stays recorded, so that a repeated deletion succeeds while nodes are offline.
pub(crate) const DELETED_FOR: Duration = Duration::from_secs(24 * 3600);

/// The digest of a placement with several different requests. The refusal of one of them does not prove that all have
/// ended.
const MIXED: Digest = Digest::from_bytes([0; 32]);

/// The placements of a driver.
///
/// The rules of a placement of a volume, whose key is the volume's name:
///
/// - its node is selected once, and durable before anything is sent;
/// - it stays while the result of an attempt is unknown, and after the volume was created, until the volume is
///   deleted;
/// - it is removed when the driver has failed with a final code, or when nothing was ever sent.
#[derive(Debug)]
pub(crate) struct Placements {
    rows: HashMap<Subject, Entry>,
    /// The live rows by node.
    of_node: HashMap<NodeId, BTreeSet<Subject>>,
    /// The names of created volumes by their ids.
    names: HashMap<Box<str>, Box<str>>,
    /// Deletions, the oldest first.
    deleted: BTreeSet<(SystemTime, Subject)>,
    /// Rows that cannot be decoded. Their names are blocked.
    damaged: HashMap<Subject, Revision>,
    /// Decommissioned nodes. Nothing is placed or found on these nodes.
    decommissioned: BTreeSet<NodeId>,
    next_attempt: u64,
    max_rows: usize,
    max_rows_of_node: usize,
}

#[derive(Debug)]
struct Entry {
    placement: Placement,
    revision: Revision,
    /// The number of this placement, which distinguishes it from a later one of the same name.
    number: u64,
    /// The number of open attempts.
    open: u32,
    /// Whether an attempt may have reached the node.
    sent: bool,
}

/// An attempt to create a volume, and its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    number: u64,
    node: NodeId,
}

impl Attempt {
    /// The node of the attempt.
    pub(crate) fn node(&self) -> &NodeId {
        &self.node
    }
}

/// A change of one row, which a store makes durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the operation of a store")]
pub struct Change {
    /// The key of the row.
    pub key: Subject,
    /// The revision that the row must have; `None` if it must not exist.
    pub expected: Option<Revision>,
    /// The new placement of the row; `None` removes the row.
    pub placement: Option<Placement>,
}

impl Change {
    fn replace(key: Subject, expected: &Revision, placement: Placement) -> Self {
        Self { key, expected: Some(expected.clone()), placement: Some(placement) }
    }

    fn remove(key: &Subject, expected: &Revision) -> Self {
        Self { key: key.clone(), expected: Some(expected.clone()), placement: None }
    }
}

/// The result of an attempt to create a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptResult<'a> {
    /// The driver has created the volume with this id.
    Created(&'a str),
    /// The driver failed with a code after which nothing is running.
    Failed,
    /// The request was provably not sent.
    NotSent,
    /// Anything else. The volume may be created at any moment.
    Unknown,
}

impl Default for Placements {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_ROWS, DEFAULT_MAX_ROWS_OF_NODE)
    }
}

impl Placements {
    /// Creates an empty table with these maximum numbers of rows: of all nodes, and of one.
    fn new(max_rows: usize, max_rows_of_node: usize) -> Self {
        let (rows, of_node, names, deleted, damaged, decommissioned) = Default::default();
        let next_attempt = 1;
        Self {
            rows,
            of_node,
            names,
            deleted,
            damaged,
            decommissioned,
            next_attempt,
            max_rows,
            max_rows_of_node,
        }
    }

    /// Loads a row of the store. A pending volume may still be created.
    pub(crate) fn restore(&mut self, Row { key, revision, placement }: Row) {
        self.remove_row(&key);
        match placement {
            Ok(placement) => self.insert(key, placement, revision, true),
            Err(_) => drop(self.damaged.insert(key, revision)),
        }
    }

    /// Removes a row that the store does not have.
    pub(crate) fn remove(&mut self, key: &Subject) {
        self.remove_row(key);
    }

    fn remove_row(&mut self, key: &Subject) -> Option<Entry> {
        self.damaged.remove(key);
        let entry = self.rows.remove(key)?;
        if let (Subject::VolumeName(name), Some(id)) = (key, entry.placement.status.volume_id())
            && self.names.get(id) == Some(name)
        {
            self.names.remove(id);
        }
        if let Status::Deleted { at, .. } = entry.placement.status {
            self.deleted.remove(&(at, key.clone()));
        }
        if let Some(rows) = self.of_node.get_mut(&entry.placement.node) {
            rows.remove(key);
            if rows.is_empty() {
                self.of_node.remove(&entry.placement.node);
            }
        }
        Some(entry)
    }

    fn insert(&mut self, key: Subject, placement: Placement, revision: Revision, sent: bool) {
        if let (Subject::VolumeName(name), Some(id)) = (&key, placement.status.volume_id()) {
            self.names.insert(id.into(), name.clone());
        }
        if let Status::Deleted { at, .. } = placement.status {
            self.deleted.insert((at, key.clone()));
        }
        if placement.status.is_live() {
            self.of_node.entry(placement.node.clone()).or_default().insert(key.clone());
        }
        let number = self.next_attempt;
        self.next_attempt += 1;
        self.rows.insert(key, Entry { placement, revision, number, open: 0, sent });
    }

    /// Applies a durable change with its new revision.
    pub(crate) fn apply(&mut self, Change { key, placement, .. }: Change, revision: Revision) {
        // What was sent for a damaged row is not known.
        let was_damaged = self.damaged.contains_key(&key);
        let before = self.remove_row(&key).filter(|before| before.placement.status.is_live());
        let Some(placement) = placement else { return };
        let sent = was_damaged || before.as_ref().is_some_and(|before| before.sent);
        self.insert(key.clone(), placement, revision, sent);
        if let (Some(Entry { number, open, .. }), Some(entry)) = (before, self.rows.get_mut(&key)) {
            (entry.number, entry.open) = (number, open);
        }
    }

    /// The node that has, or may have, a subject.
    pub(crate) fn node_of(&self, subject: &Subject) -> Option<&NodeId> {
        self.live(subject).map(|(_, entry)| &entry.placement.node)
    }

    /// Whether the name of a volume has no node and is not blocked: nothing that was sent for the name may be running.
    pub(crate) fn is_new(&self, name: &str) -> bool {
        let key = Subject::VolumeName(name.into());
        !self.damaged.contains_key(&key) && self.node_of(&key).is_none()
    }

    /// Whether a driver has deleted the subject, or its node is decommissioned.
    pub(crate) fn is_deleted(&self, subject: &Subject) -> bool {
        let is_deleted_status = |Placement { node, status, .. }: &Placement| match status {
            Status::Deleted { .. } => true,
            Status::Lost { .. } => self.decommissioned.contains(node),
            Status::Pending | Status::Created { .. } => false,
        };
        self.keys(subject)
            .any(|key| self.rows.get(&key).is_some_and(|entry| is_deleted_status(&entry.placement)))
            && self.node_of(subject).is_none()
    }

    /// Marks a node as decommissioned. Its rows must still be [released](Self::released).
    pub(crate) fn decommission(&mut self, node: &NodeId) {
        self.decommissioned.insert(node.clone());
    }

    /// Marks a node as no longer decommissioned.
    pub(crate) fn recommission(&mut self, node: &NodeId) {
        self.decommissioned.remove(node);
    }

    /// Whether a node has, or may have, a subject.
    pub(crate) fn has_rows_of(&self, node: &NodeId) -> bool {
        self.of_node.contains_key(node)
    }

    /// The ids of the volumes that a node has.
    pub(crate) fn volumes_of(&self, node: &NodeId) -> BTreeSet<Box<str>> {
        let id = |key: &Subject| match key {
            Subject::Volume(_) | Subject::VolumeName(_) => {
                self.rows.get(key)?.placement.status.volume_id().map(Box::from)
            }
            Subject::Snapshot(_) | Subject::GroupSnapshot(_) => None,
        };
        self.of_node.get(node).into_iter().flatten().filter_map(id).collect()
    }

    fn is_full(&self, node: &NodeId) -> bool {
        self.of_node.get(node).is_some_and(|rows| rows.len() >= self.max_rows_of_node)
    }

    /// The number of volumes, snapshots and groups that exist or may exist.
    pub(crate) fn rows(&self) -> usize {
        self.rows.values().filter(|entry| entry.placement.status.is_live()).count()
    }

    /// The keys of the rows that cannot be decoded, unordered.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = &Subject> {
        self.damaged.keys()
    }

    /// Replaces the damaged row of a volume's name: its volume is on this node or may be created there, or the name is
    /// free for `None`. No change if the row is not damaged.
    pub(crate) fn repaired(&self, name: &str, node: Option<&NodeId>) -> Option<Change> {
        let key = Subject::VolumeName(name.into());
        let revision = self.damaged.get(&key)?;
        let pending =
            |node: &NodeId| Placement { node: node.clone(), digest: MIXED, status: Status::Pending };
        Some(Change { placement: node.map(pending), expected: Some(revision.clone()), key })
    }

    /// The possible keys of a subject: for a volume its name, if known, and its id.
    fn keys(&self, subject: &Subject) -> impl Iterator<Item = Subject> + use<> {
        let by_name = match subject {
            Subject::Volume(id) => self.names.get(id).map(|name| Subject::VolumeName(name.clone())),
            _ => None,
        };
        by_name.into_iter().chain([subject.clone()])
    }

    fn live(&self, subject: &Subject) -> Option<(Subject, &Entry)> {
        self.keys(subject).find_map(|key| {
            let entry = self.rows.get(&key).filter(|entry| entry.placement.status.is_live())?;
            Some((key, entry))
        })
    }

    /// Selects the node of a requested volume. Once the change is durable, [`Self::begin`] begins the attempt. `None`
    /// if a durable placement exists already.
    ///
    /// # Errors
    /// If the volume cannot be placed. The error is the answer to the caller, and nothing is sent to a node.
    pub(crate) fn create(
        &self,
        request: &VolumeRequest,
        selector: NodeSelector<'_>,
    ) -> Result<Option<Change>, Refusal> {
        let key = Subject::VolumeName(request.name.clone());
        if self.damaged.contains_key(&key) {
            return Err(Refusal::Damaged { name: request.name.clone() });
        }
        let known = self.rows.get(&key);
        if let Some(Entry { placement, revision, .. }) =
            known.filter(|entry| entry.placement.status.is_live())
        {
            if self.decommissioned.contains(&placement.node) {
                return Err(Refusal::Decommissioned { node: placement.node.clone() });
            }
            // Another request for the name is sent to the same node, whose driver decides whether both are
            // compatible.
            let other = placement.status == Status::Pending
                && placement.digest != request.fingerprint
                && placement.digest != MIXED;
            let several = || Placement { digest: MIXED, ..placement.clone() };
            return Ok(other.then(|| Change::replace(key, revision, several())));
        }
        let source = request.source.as_ref().and_then(|source| self.node_of(source));
        let node = selector.select(request, source)?;
        if self.decommissioned.contains(&node) {
            return Err(Refusal::Decommissioned { node });
        }
        if self.is_full(&node) {
            return Err(Refusal::NodeFull { node, max: self.max_rows_of_node });
        }
        let placement = Placement { node, digest: request.fingerprint, status: Status::Pending };
        match known {
            Some(entry) => Ok(Some(Change::replace(key, &entry.revision, placement))),
            None if self.rows.len() >= self.max_rows => Err(Refusal::Full { max: self.max_rows }),
            None => Ok(Some(Change { key, expected: None, placement: Some(placement) })),
        }
    }

    /// Begins an attempt to create a volume whose placement is durable. [`Self::ended`] must follow.
    pub(crate) fn begin(&mut self, request: &VolumeRequest) -> Option<Attempt> {
        let entry = self.rows.get_mut(&Subject::VolumeName(request.name.clone()))?;
        entry.open += 1;
        Some(Attempt { number: entry.number, node: entry.placement.node.clone() })
    }

    /// Records the result of an attempt and returns the change that follows.
    ///
    /// # Errors
    /// If the volume was created on a decommissioned node, or another node has its id. In the latter case the
    /// placement stays.
    pub(crate) fn ended(
        &mut self,
        request: &VolumeRequest,
        attempt: &Attempt,
        end: AttemptResult<'_>,
    ) -> Result<Option<Change>, Refusal> {
        let key = Subject::VolumeName(request.name.clone());
        let lost = matches!(end, AttemptResult::Created(_)) && self.decommissioned.contains(&attempt.node);
        let lost = || lost.then(|| Refusal::Decommissioned { node: attempt.node.clone() });
        let Some(entry) = self.rows.get_mut(&key).filter(|entry| entry.number == attempt.number) else {
            return lost().map_or(Ok(None), Err);
        };
        entry.open = entry.open.saturating_sub(1);
        // After a final failure nothing is running for this request; another request may be.
        let same = entry.placement.digest == request.fingerprint;
        let pending = entry.placement.status == Status::Pending;
        let over = match end {
            AttemptResult::NotSent => !entry.sent,
            AttemptResult::Failed => same,
            AttemptResult::Created(_) | AttemptResult::Unknown => false,
        };
        if over && pending && entry.open == 0 {
            return Ok(Some(Change::remove(&key, &entry.revision)));
        }
        entry.sent |= match end {
            AttemptResult::NotSent => false,
            AttemptResult::Failed => !same,
            AttemptResult::Created(_) | AttemptResult::Unknown => true,
        };
        let AttemptResult::Created(id) = end else { return Ok(None) };
        if let Some(refusal) = lost() {
            return Err(refusal);
        }
        let (status, revision) = (Status::Created { id: id.into() }, entry.revision.clone());
        let placement = Placement { node: attempt.node.clone(), digest: request.fingerprint, status };
        let is_new = entry.placement.status != placement.status;
        let subject = Subject::Volume(id.into());
        match self.node_of(&subject) {
            Some(known) if *known != attempt.node => {
                let (known, other) = (known.clone(), attempt.node.clone());
                Err(Refusal::DuplicateId { subject, known, other })
            }
            _ => Ok(is_new.then(|| Change::replace(key, &revision, placement))),
        }
    }

    /// Records that a node has this subject. The record is an optimization, since a subject can be searched, so
    /// nothing changes if the table is full, or the node has its maximum.
    ///
    /// # Errors
    /// If another node has the subject.
    pub(crate) fn found(&self, subject: &Subject, node: &NodeId) -> Result<Option<Change>, Refusal> {
        if self.decommissioned.contains(node) {
            return Ok(None);
        }
        if let Some(known) = self.node_of(subject) {
            if known == node {
                return Ok(None);
            }
            let (known, other) = (known.clone(), node.clone());
            return Err(Refusal::DuplicateId { subject: subject.clone(), known, other });
        }
        if matches!(subject, Subject::VolumeName(_)) || self.is_full(node) {
            return Ok(None);
        }
        let status = Status::Created { id: subject.id().into() };
        let placement = Placement { node: node.clone(), digest: MIXED, status };
        if let Some(revision) = self.damaged.get(subject) {
            // The node has reported what the damaged row was.
            return Ok(Some(Change::replace(subject.clone(), revision, placement)));
        }
        Ok(match self.keys(subject).find_map(|key| Some((self.rows.get(&key)?.revision.clone(), key))) {
            Some((revision, key)) => Some(Change::replace(key, &revision, placement)),
            None if self.rows.len() >= self.max_rows => None,
            None => Some(Change { key: subject.clone(), expected: None, placement: Some(placement) }),
        })
    }

    /// Records that a driver, or every driver, has deleted the subject.
    pub(crate) fn deleted(&self, subject: &Subject, now: SystemTime) -> Vec<Change> {
        let change = |key: Subject| {
            if let Some(revision) = self.damaged.get(&key) {
                return Some(Change::remove(&key, revision));
            }
            let Entry { placement, revision, open, .. } = self.rows.get(&key)?;
            let id = placement.status.volume_id().unwrap_or_default().into();
            let status = match &placement.status {
                Status::Deleted { .. } => return None,
                // The volume is being created again.
                _ if *open > 0 => Status::Pending,
                _ => Status::Deleted { id, at: now },
            };
            Some(Change::replace(key, revision, Placement { status, ..placement.clone() }))
        };
        self.keys(subject).filter_map(change).collect()
    }

    /// Releases the rows of a decommissioned node: what had an id counts as deleted, and the names are free.
    /// Returns the changes that record the ids, then those that free the names.
    pub(crate) fn released(&self, node: &NodeId) -> (Vec<Change>, Vec<Change>) {
        let (mut lost, mut free) = (Vec::new(), Vec::new());
        for (key, Entry { placement, revision, .. }) in &self.rows {
            if placement.node != *node || !placement.status.is_live() {
                continue;
            }
            let Some(id) = placement.status.volume_id() else {
                free.push(Change::remove(key, revision));
                continue;
            };
            let lost_placement = Placement { status: Status::Lost { id: id.into() }, ..placement.clone() };
            if let Subject::VolumeName(_) = key {
                let by_id = Subject::Volume(id.into());
                if !self.rows.contains_key(&by_id) {
                    lost.push(Change { key: by_id, expected: None, placement: Some(lost_placement) });
                }
                free.push(Change::remove(key, revision));
            } else {
                lost.push(Change::replace(key.clone(), revision, lost_placement));
            }
        }
        (lost, free)
    }

    /// Returns the change that removes the oldest deletion, if the deletion has expired or the table is full.
    pub(crate) fn expired(&self, now: SystemTime) -> Option<Change> {
        let (at, key) = self.deleted.first()?;
        let old = now.duration_since(*at).is_ok_and(|age| age >= DELETED_FOR);
        let revision = &self.rows.get(key)?.revision;
        (old || self.rows.len() >= self.max_rows).then(|| Change::remove(key, revision))
    }
}

#[cfg(test)]
mod tests;
