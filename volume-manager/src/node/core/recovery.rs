//! Recovery of the volumes from their records, without calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::commits::Commits;
use super::entry::Entry;
use super::timers::Timers;
use super::{Action, Node, Slot};
use crate::driver::MountPath;
use crate::mounts::MountTable;
use crate::node::record::{KIND, Record, RecordError, record_key};
use crate::node::settings::VolumeSettings;
use crate::node::staging;
use crate::store::{BootId, Change, Loaded, RecordKey};

impl Node {
    /// Restores the recorded volumes. No call is made before their drivers connect.
    ///
    /// An unreadable record is quarantined in the store and counted, and other volumes are not affected. The actions
    /// must be performed like those of [`step`](Self::step).
    #[must_use = "nothing is done unless the actions are performed"]
    pub fn open(
        settings: VolumeSettings,
        boot: BootId,
        loaded: Loaded,
        table: Arc<MountTable>,
    ) -> (Self, Vec<Action>) {
        let mut node = Self {
            settings,
            boot,
            volumes: HashMap::new(),
            by_key: BTreeMap::new(),
            directories: HashMap::new(),
            targets: HashMap::new(),
            drivers: BTreeMap::new(),
            quarantined: Vec::new(),
            quarantined_names: BTreeMap::new(),
            timers: Timers::default(),
            commits: Commits::new(),
            last_slot: 0,
            epoch: 0,
            table,
            mounts_missing: BTreeSet::new(),
            actions: Vec::new(),
        };
        for quarantined in loaded.quarantined {
            match &quarantined.key {
                Some(key) => node.quarantine(key, quarantined.reason.to_string()),
                None => node.quarantined.push((quarantined.id.to_string(), quarantined.reason.to_string())),
            }
        }
        let mut changes = Vec::new();
        for (key, payload) in loaded.records {
            // Records of other kinds belong to other users of the store.
            if key.kind() != KIND {
                continue;
            }
            if let Err(error) = node.restore(&key, &payload) {
                node.quarantine(&key, crate::excerpt::chain(&error));
                // A record of a later schema is readable again after an upgrade. Until then its name is reserved.
                if !matches!(error, RecordError::Schema { .. }) {
                    changes.push(Change::Quarantine(key));
                }
            }
        }
        if !changes.is_empty() {
            node.commits.quarantine(changes);
            node.start_commit(Duration::ZERO);
        }
        let actions = std::mem::take(&mut node.actions);
        (node, actions)
    }

    fn quarantine(&mut self, key: &RecordKey, reason: String) {
        self.quarantined.push((key.name().escape_ascii().to_string(), reason.clone()));
        self.quarantined_names.insert(key.name().into(), reason);
    }

    fn restore(&mut self, key: &RecordKey, payload: &[u8]) -> Result<(), RecordError> {
        let record = Record::decode(payload)?;
        let volume = record.spec.key().clone();
        let invalid_key = |reason: &str| RecordError::Field { field: "key", reason: reason.to_owned() };
        if record_key(&volume, &record.directory)? != *key {
            return Err(invalid_key("it is the key of another volume"));
        }
        if self.by_key.contains_key(&volume) {
            return Err(invalid_key("the volume has another record"));
        }
        let staging = self.staging_of(&volume, &record.directory)?;
        let slot = self.new_slot();
        for (id, consumer) in &record.consumers {
            let target = consumer.spec.target_path().clone();
            self.targets.entry(target).or_insert_with(|| (slot, id.clone()));
        }
        let mut entry = Entry::new(volume, key.clone(), staging, record);
        entry.state = entry.current_state();
        self.insert(slot, entry);
        Ok(())
    }

    pub(super) fn new_slot(&mut self) -> Slot {
        self.last_slot += 1;
        Slot(self.last_slot)
    }

    pub(super) fn insert(&mut self, slot: Slot, entry: Entry) {
        self.by_key.insert(entry.key.clone(), slot);
        self.directories.insert(entry.record_key.name().into(), slot);
        self.driver(&entry.key.driver).volumes.insert(slot);
        self.volumes.insert(slot, entry);
    }

    pub(super) fn staging_of(
        &self,
        key: &crate::VolumeKey,
        directory: &str,
    ) -> Result<MountPath, RecordError> {
        let path = staging::staging_path(&self.settings.root, key, directory);
        MountPath::new(path)
            .map_err(|error| RecordError::Field { field: "directory", reason: error.to_string() })
    }
}
