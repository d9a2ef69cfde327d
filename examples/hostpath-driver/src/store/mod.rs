//! Records on disk: one JSON file each, replaced atomically, so that a reader finds the old or the new record.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CallError;
use super::identifier::ResourceId;
use edge_csi_common::state::{PathError, failed};

/// Maximum number of records in a table, which bounds memory: about 1 KiB each.
pub const MAX_RECORDS: usize = 16_384;

/// A record that the driver keeps across restarts.
pub trait Record: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// The name in messages, and the folder of the files.
    const FOLDER: &'static str;

    /// Returns the id, which names the file.
    fn id(&self) -> &ResourceId;

    /// Returns the name in the create request, unique in the table.
    fn name(&self) -> &str;
}

/// All records of one kind, in memory and on disk.
///
/// The driver serializes writers of one record, since it runs one operation per volume.
#[derive(Debug)]
pub struct Table<R, D = RealDisk> {
    folder: PathBuf,
    disk: D,
    rows: Mutex<BTreeMap<ResourceId, R>>,
}

impl<R: Record> Table<R> {
    /// Reads every record below `state_dir`.
    ///
    /// A file that cannot be parsed is renamed to `<id>.json.bad` with a warning, never deleted.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or listed.
    pub fn open(state_dir: &Path) -> Result<Self, PathError> {
        Self::open_on(RealDisk, state_dir)
    }
}

impl<R: Record, D: Disk> Table<R, D> {
    /// Reads every record below `state_dir` on the given disk, like [`Table::open`].
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or listed.
    pub fn open_on(disk: D, state_dir: &Path) -> Result<Self, PathError> {
        let folder = state_dir.join(R::FOLDER);
        fs::create_dir_all(&folder).map_err(failed("make folder", &folder))?;
        let mut rows = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(failed("list", &folder))? {
            let path = entry.map_err(failed("list", &folder))?.path();
            match path.extension().and_then(|e| e.to_str()) {
                Some("json") => {}
                // A write that was interrupted before its rename.
                Some("new") => {
                    disk.remove(&path).map_err(failed("remove", &path))?;
                    continue;
                }
                _ => continue,
            }
            match read_record::<R>(&path) {
                Ok(record) => drop(rows.insert(record.id().clone(), record)),
                Err(reason) => {
                    let aside = path.with_extension("json.bad");
                    tracing::error!(file = %path.display(), aside = %aside.display(), %reason, "a record cannot be read; set aside, its data is kept");
                    disk.rename(&path, &aside).map_err(failed("set aside", &path))?;
                }
            }
        }
        disk.sync_folder(&folder).map_err(failed("sync", &folder))?;
        Ok(Self { folder, disk, rows: Mutex::new(rows) })
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<ResourceId, R>> {
        // No change of the rows panics midway, so the data behind a poisoned lock is consistent.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record with this id.
    pub fn by_id(&self, id: &ResourceId) -> Option<R> {
        self.rows().get(id).cloned()
    }

    /// Returns the record with this name.
    pub fn by_name(&self, name: &str) -> Option<R> {
        self.rows().values().find(|record| record.name() == name).cloned()
    }

    /// Reads all records, sorted by id. Blocks all other access, so `read` must be fast.
    pub fn read<T>(&self, read: impl FnOnce(&BTreeMap<ResourceId, R>) -> T) -> T {
        read(&self.rows())
    }

    /// Stores a record durably, and replaces the record with the same id.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written. The old record stays; after a power cut, the old or the new one.
    pub fn put(&self, record: R) -> Result<(), CallError> {
        let id = record.id().clone();
        {
            let rows = self.rows();
            if rows.len() >= MAX_RECORDS && !rows.contains_key(&id) {
                return Err(CallError::Exhausted {
                    subject: R::FOLDER,
                    limit: MAX_RECORDS.to_string(),
                    found: "one more".to_owned(),
                    fix: "delete some",
                });
            }
        }
        let path = self.path_of(&id);
        let new = path.with_extension("new");
        let failed = |action| failed(action, &path);
        let bytes = serde_json::to_vec_pretty(&record).map_err(|error| failed("encode")(error.into()))?;
        self.disk.write(&new, &bytes).map_err(failed("write"))?;
        self.disk.sync_file(&new).map_err(failed("sync"))?;
        self.disk.rename(&new, &path).map_err(failed("replace"))?;
        self.disk.sync_folder(&self.folder).map_err(failed("sync the folder of"))?;
        self.rows().insert(id, record);
        Ok(())
    }

    /// Removes a record durably. Removing an unknown record is a success.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed; the record may then exist or not after a restart.
    pub fn remove(&self, id: &ResourceId) -> Result<(), CallError> {
        let path = self.path_of(id);
        match self.disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(CallError::path("remove", path, error));
            }
            _ => {}
        }
        self.disk.sync_folder(&self.folder).map_err(failed("sync the folder of", &path))?;
        self.rows().remove(id);
        Ok(())
    }

    fn path_of(&self, id: &ResourceId) -> PathBuf {
        // `set_extension` would treat a dot in the id as the start of an extension.
        self.folder.join(format!("{id}.json"))
    }
}

fn read_record<R: Record>(path: &Path) -> Result<R, String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    let record: R = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    let named_by_file = path.file_stem().and_then(|s| s.to_str());
    if named_by_file != Some(record.id().as_str()) {
        return Err(format!(
            "the file name has the id {named_by_file:?}, the record has the id {}",
            record.id()
        ));
    }
    Ok(record)
}

/// The steps of a durable write. A power cut may follow each.
pub trait Disk: Send + Sync + 'static {
    /// Writes a new file or replaces one, readable only by its owner; not yet durable.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, and replaces the target.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Returns the errors of the filesystem.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// The disk of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[cfg(test)]
mod tests;
