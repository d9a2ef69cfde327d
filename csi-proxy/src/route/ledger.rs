//! Which node has what: the placements of volumes that are being made, and the index of what was made.
//!
//! No disk and no clock: an [`Event`] in, a [`Step`] out, whose changes are for a
//! [`Journal`](crate::operation::journal::Journal). Rows that cannot be read are set aside at the start.

mod record;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use csi_proto::DriverName;

pub use self::record::{MAGIC, VERSION};
use self::record::{Row, open, seal};
use super::election::Ballot;
use super::refusal::Refusal;
use super::request::VolumeRequest;
use crate::call::NodeId;
use crate::operation::journal::record::Defect;
use crate::operation::journal::{Change, Quarantined};
use crate::operation::{Digest, Subject};

/// Most rows of a [`Ledger`], unless set otherwise. Each volume has two, a snapshot one; a row takes a few hundred bytes.
pub const DEFAULT_MAX_ROWS: usize = 400_000;

/// The fingerprint of a placement for which several requests were sent. No refusal of one of them says that all are over.
const SEVERAL: Digest = Digest::from_bytes([0; 32]);

/// What a driver has on which node, and where volumes are being made.
///
/// The rules of a placement, which is known by the volume's name:
///
/// - it is chosen once, and on the disk before anything is sent;
/// - it stays while the end of an attempt is not known, and when the volume was made, until that is deleted;
/// - it goes when the driver has refused for good, or when nothing was ever sent.
#[derive(Debug)]
pub struct Ledger {
    driver: DriverName,
    placements: HashMap<Box<str>, Placement>,
    index: HashMap<Subject, Place>,
    /// The names by which volumes were made, by their ids.
    names: HashMap<Box<str>, Box<str>>,
    /// What nodes said of themselves, with their rows.
    descriptions: HashMap<NodeId, (u64, Bytes)>,
    /// Decommissioned nodes, with their rows. Nothing is placed or found there.
    decommissioned: HashMap<NodeId, u64>,
    next_row: u64,
    max_rows: usize,
}

#[derive(Debug)]
struct Placement {
    row: u64,
    node: NodeId,
    fingerprint: Digest,
    stage: Stage,
    /// Attempts under way.
    attempts: u32,
}

/// What is known of a placement's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// No attempt has ended otherwise than before it was sent.
    Unsent,
    /// It may exist, or come to exist.
    Uncertain,
    /// It exists and has this id.
    Made(Box<str>),
}

/// Where something is that has an id.
#[derive(Debug)]
struct Place {
    row: u64,
    node: NodeId,
}

/// An attempt to make a volume, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    placement: u64,
    node: NodeId,
}

impl Attempt {
    /// Where it goes.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }
}

/// What happened.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "the inputs of the state machine")]
pub enum Event<'a> {
    /// A volume is asked for. After a step, and only then, an [`Event::Ended`] has to follow.
    Create {
        /// The request.
        request: &'a VolumeRequest,
        /// Among which nodes to choose, should none be chosen yet.
        ballot: Ballot<'a>,
    },
    /// An attempt to make a volume has ended.
    Ended {
        /// Its request.
        request: &'a VolumeRequest,
        /// The attempt.
        attempt: &'a Attempt,
        /// How it ended.
        end: End<'a>,
    },
    /// A node's driver has this.
    Found {
        /// What it has.
        subject: Subject,
        /// The node.
        node: &'a NodeId,
    },
    /// It is deleted.
    Deleted {
        /// What was deleted.
        subject: &'a Subject,
    },
    /// A node has said what it is.
    Described {
        /// The node.
        node: &'a NodeId,
        /// What it said, in whatever form; of a bounded size.
        description: Bytes,
    },
    /// A node is lost, with all that was there.
    Decommissioned {
        /// The node.
        node: &'a NodeId,
    },
    /// A node is no longer decommissioned.
    Recommissioned {
        /// The node.
        node: &'a NodeId,
    },
}

/// How an attempt to make a volume ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the inputs of the state machine")]
pub enum End<'a> {
    /// The driver has made it, and gave it this id.
    Made(&'a str),
    /// The driver refused with a code after which nothing is under way.
    Refused,
    /// The request provably never left.
    NeverLeft,
    /// Anything else. It may be made at this moment.
    Uncertain,
}

/// What follows from an event.
#[derive(Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The attempt that is made once the changes are on the disk.
    pub attempt: Option<Attempt>,
    /// What is to be on the disk before the caller is told or anything is sent.
    pub changes: Vec<Change>,
}

impl Ledger {
    /// Knows nothing, of this driver.
    #[must_use]
    pub fn new(driver: DriverName) -> Self {
        Self {
            driver,
            placements: HashMap::new(),
            index: HashMap::new(),
            names: HashMap::new(),
            descriptions: HashMap::new(),
            decommissioned: HashMap::new(),
            next_row: 1,
            max_rows: DEFAULT_MAX_ROWS,
        }
    }

    /// The same with at most so many rows.
    #[must_use]
    pub fn with_max_rows(mut self, rows: usize) -> Self {
        self.max_rows = rows;
        self
    }

    /// Takes a row that was kept. Whatever was being made then may be made still.
    ///
    /// # Errors
    /// What is wrong with it. It is to be set aside.
    pub fn restore(&mut self, row: u64, bytes: &[u8]) -> Result<(), Quarantined> {
        self.next_row = self.next_row.max(row.saturating_add(1));
        let taken = match open(&self.driver, row, bytes) {
            Ok(Row::Placement { name, node, fingerprint, volume }) => {
                if let Some(volume) = &volume {
                    self.names.insert(volume.clone(), name.clone());
                }
                let stage = volume.map_or(Stage::Uncertain, Stage::Made);
                let placement = Placement { row, node, fingerprint, stage, attempts: 0 };
                vacant(self.placements.entry(name), placement)
            }
            Ok(Row::Place { subject, node }) => vacant(self.index.entry(subject), Place { row, node }),
            Ok(Row::Node { node, description }) => vacant(self.descriptions.entry(node), (row, description)),
            Ok(Row::Decommissioned { node }) => vacant(self.decommissioned.entry(node), row),
            Err(defect) => Err(defect),
        };
        taken.map_err(|defect| Quarantined { row, defect })
    }

    /// Where something is.
    #[must_use]
    pub fn node_of(&self, subject: &Subject) -> Option<&NodeId> {
        match subject {
            Subject::VolumeName(name) => self.placements.get(name).map(|placement| &placement.node),
            _ => self.index.get(subject).map(|place| &place.node),
        }
    }

    /// What a node has said of itself.
    #[must_use]
    pub fn description_of(&self, node: &NodeId) -> Option<&Bytes> {
        self.descriptions.get(node).map(|(_, description)| description)
    }

    /// What nodes have said of themselves, in no order.
    pub fn descriptions(&self) -> impl Iterator<Item = (&NodeId, &Bytes)> {
        self.descriptions.iter().map(|(node, (_, description))| (node, description))
    }

    /// The decommissioned nodes, in no order.
    pub fn decommissioned(&self) -> impl Iterator<Item = &NodeId> {
        self.decommissioned.keys()
    }

    /// Whether something is on a node, or may be.
    #[must_use]
    pub fn has_rows_of(&self, node: &NodeId) -> bool {
        self.placements.values().any(|placement| placement.node == *node)
            || self.index.values().any(|place| place.node == *node)
    }

    /// How many rows there are, but for those of nodes.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.placements.len() + self.index.len()
    }

    /// Takes an event in.
    ///
    /// # Errors
    /// What the caller is told. Then nothing goes to a node, and what is known stays known.
    pub fn handle(&mut self, event: Event<'_>) -> Result<Step, Refusal> {
        match event {
            Event::Found { node, .. } | Event::Described { node, .. }
                if self.decommissioned.contains_key(node) =>
            {
                Ok(Step::default())
            }
            Event::Create { request, ballot } => self.create(request, ballot),
            Event::Ended { request, attempt, end } => self.ended(request, attempt, end),
            Event::Found { subject, node } => self.found_if_room(subject, node),
            Event::Deleted { subject } => Ok(Step::of(self.deleted(subject))),
            Event::Described { node, description } => Ok(Step::of(self.described(node, description))),
            Event::Decommissioned { node } => Ok(Step::of(self.decommission(node))),
            Event::Recommissioned { node } => {
                let row = self.decommissioned.remove(node);
                Ok(Step::of(row.map(Change::Remove).into_iter().collect()))
            }
        }
    }

    /// That it is known where something is helps, but is not needed: it can be looked for.
    fn found_if_room(&mut self, subject: Subject, node: &NodeId) -> Result<Step, Refusal> {
        if self.rows() >= self.max_rows && self.node_of(&subject).is_none() {
            return Ok(Step::default());
        }
        self.found(subject, node).map(Step::of)
    }

    fn create(&mut self, request: &VolumeRequest, ballot: Ballot<'_>) -> Result<Step, Refusal> {
        if let Some(placement) = self.placements.get_mut(&request.name) {
            let (is_made, other) =
                (matches!(placement.stage, Stage::Made(_)), placement.fingerprint != request.fingerprint);
            if is_made && other {
                return Err(Refusal::OtherRequest { name: request.name.clone() });
            }
            placement.attempts += 1;
            let mut step = Step { attempt: Some(placement.attempt()), changes: Vec::new() };
            // Another request while the end of the first is open goes to the same driver, which knows whether they are compatible.
            if other && placement.fingerprint != SEVERAL {
                placement.fingerprint = SEVERAL;
                step.changes.extend(self.put(&request.name));
            }
            return Ok(step);
        }
        let source = request.source.as_ref().and_then(|source| self.index.get(source));
        let node = ballot.elect(request, source.map(|place| &place.node))?;
        if self.decommissioned.contains_key(&node) {
            return Err(Refusal::Decommissioned { node });
        }
        // The ids of those that are being made come on top.
        if self.rows() + 2 > self.max_rows {
            return Err(Refusal::Full { max: self.max_rows });
        }
        let (row, fingerprint) = (self.row(), request.fingerprint);
        let placement = Placement { row, node, fingerprint, stage: Stage::Unsent, attempts: 1 };
        let attempt = placement.attempt();
        self.placements.insert(request.name.clone(), placement);
        Ok(Step { attempt: Some(attempt), changes: self.put(&request.name).into_iter().collect() })
    }

    fn ended(&mut self, request: &VolumeRequest, attempt: &Attempt, end: End<'_>) -> Result<Step, Refusal> {
        let End::Made(id) = end else {
            return Ok(Step::of(self.close(request, attempt, end).into_iter().collect()));
        };
        if self.decommissioned.contains_key(&attempt.node) {
            return Err(Refusal::Decommissioned { node: attempt.node.clone() });
        }
        let volume = Subject::Volume(id.into());
        match self.found(volume, &attempt.node) {
            Ok(mut changes) => {
                changes.extend(self.made(request, attempt, id));
                self.close(request, attempt, end);
                Ok(Step::of(changes))
            }
            Err(refusal) => {
                self.close(request, attempt, End::Uncertain);
                Err(refusal)
            }
        }
    }

    /// The volume of an attempt has this id.
    fn made(&mut self, request: &VolumeRequest, attempt: &Attempt, id: &str) -> Vec<Change> {
        let Some(placement) = placement_of(&mut self.placements, request, attempt) else { return Vec::new() };
        let made = Stage::Made(id.into());
        if placement.stage == made {
            return Vec::new();
        }
        let before = std::mem::replace(&mut placement.stage, made);
        placement.fingerprint = request.fingerprint;
        self.names.insert(id.into(), request.name.clone());
        let mut changes: Vec<_> = self.put(&request.name).into_iter().collect();
        if let Stage::Made(old) = before {
            // It was deleted past us and is made anew.
            self.names.remove(&old);
            changes.extend(self.index.remove(&Subject::Volume(old)).map(|place| Change::Remove(place.row)));
        }
        changes
    }

    /// An attempt is over.
    fn close(&mut self, request: &VolumeRequest, attempt: &Attempt, end: End<'_>) -> Option<Change> {
        let placement = placement_of(&mut self.placements, request, attempt)?;
        placement.attempts = placement.attempts.saturating_sub(1);
        let last = placement.attempts == 0;
        let over = match (&placement.stage, end) {
            (Stage::Made(_), _) | (_, End::Made(_) | End::Uncertain) => false,
            (stage, End::NeverLeft) => last && *stage == Stage::Unsent,
            // What was refused is this request, and not another that may be under way.
            (_, End::Refused) => last && placement.fingerprint == request.fingerprint,
        };
        if over {
            return self.placements.remove(&request.name).map(|placement| Change::Remove(placement.row));
        }
        // Of attempts for the same, each tells what became of it: after a refusal nothing is under way for this one.
        let nothing = match end {
            End::NeverLeft => true,
            End::Refused => placement.fingerprint == request.fingerprint,
            End::Made(_) | End::Uncertain => false,
        };
        if placement.stage == Stage::Unsent && !nothing {
            placement.stage = Stage::Uncertain;
        }
        None
    }

    fn found(&mut self, subject: Subject, node: &NodeId) -> Result<Vec<Change>, Refusal> {
        if let Some(place) = self.index.get(&subject) {
            if place.node != *node {
                return Err(Refusal::SameId { subject, known: place.node.clone(), other: node.clone() });
            }
            return Ok(Vec::new());
        }
        let row = self.row();
        let place = Row::Place { subject: subject.clone(), node: node.clone() };
        let put = Change::Put(row, seal(&self.driver, row, &place));
        self.index.insert(subject, Place { row, node: node.clone() });
        Ok(vec![put])
    }

    fn deleted(&mut self, subject: &Subject) -> Vec<Change> {
        let place = self.index.remove(subject);
        let mut changes: Vec<_> = place.map(|place| Change::Remove(place.row)).into_iter().collect();
        let Subject::Volume(id) = subject else { return changes };
        let Some(name) = self.names.remove(id) else { return changes };
        let Entry::Occupied(mut placement) = self.placements.entry(name.clone()) else { return changes };
        if placement.get().attempts == 0 {
            changes.push(Change::Remove(placement.remove().row));
        } else {
            // Somebody makes it anew at this moment.
            placement.get_mut().stage = Stage::Uncertain;
            changes.extend(self.put(&name));
        }
        changes
    }

    fn described(&mut self, node: &NodeId, description: Bytes) -> Vec<Change> {
        let row = match self.descriptions.get(node) {
            Some((_, known)) if *known == description => return Vec::new(),
            Some((row, _)) => *row,
            None => self.row(),
        };
        let content = Row::Node { node: node.clone(), description: description.clone() };
        self.descriptions.insert(node.clone(), (row, description));
        vec![Change::Put(row, seal(&self.driver, row, &content))]
    }

    fn decommission(&mut self, node: &NodeId) -> Vec<Change> {
        let placements = self.placements.extract_if(|_, placement| placement.node == *node);
        let mut rows = Vec::new();
        for (_, placement) in placements {
            if let Stage::Made(id) = &placement.stage {
                self.names.remove(id);
            }
            rows.push(placement.row);
        }
        rows.extend(self.descriptions.remove(node).map(|(row, _)| row));
        rows.extend(self.index.extract_if(|_, place| place.node == *node).map(|(_, place)| place.row));
        let mut changes: Vec<_> = rows.into_iter().map(Change::Remove).collect();
        if !self.decommissioned.contains_key(node) {
            let row = self.row();
            self.decommissioned.insert(node.clone(), row);
            let content = Row::Decommissioned { node: node.clone() };
            changes.push(Change::Put(row, seal(&self.driver, row, &content)));
        }
        changes
    }

    /// The change that writes a placement.
    fn put(&self, name: &str) -> Option<Change> {
        let Placement { row, node, fingerprint, stage, .. } = self.placements.get(name)?;
        let volume = match stage {
            Stage::Made(id) => Some(id.clone()),
            Stage::Unsent | Stage::Uncertain => None,
        };
        let (name, node, fingerprint) = (name.into(), node.clone(), *fingerprint);
        let content = Row::Placement { name, node, fingerprint, volume };
        Some(Change::Put(*row, seal(&self.driver, *row, &content)))
    }

    fn row(&mut self) -> u64 {
        let row = self.next_row;
        self.next_row = row.wrapping_add(1);
        row
    }
}

impl Placement {
    fn attempt(&self) -> Attempt {
        Attempt { placement: self.row, node: self.node.clone() }
    }
}

impl Step {
    fn of(changes: Vec<Change>) -> Self {
        Self { attempt: None, changes }
    }
}

/// The placement that an attempt belongs to, unless it is gone meanwhile.
fn placement_of<'a>(
    placements: &'a mut HashMap<Box<str>, Placement>,
    request: &VolumeRequest,
    attempt: &Attempt,
) -> Option<&'a mut Placement> {
    placements.get_mut(&request.name).filter(|placement| placement.row == attempt.placement)
}

fn vacant<K, V>(entry: Entry<'_, K, V>, value: V) -> Result<(), Defect> {
    match entry {
        Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
        Entry::Occupied(_) => Err(Defect::Field { field: "id" }),
    }
}

#[cfg(test)]
mod tests;
