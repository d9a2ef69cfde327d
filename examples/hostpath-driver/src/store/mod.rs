//! Records on disk: one JSON file each, replaced as a whole, so that a reader finds the old one or the new one.

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

/// Most records that a table holds, which bounds memory: about 1 KiB each.
pub const MAX_RECORDS: usize = 16_384;

/// A thing that the driver remembers over a restart.
pub trait Record: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// What it is called in messages, and the folder of its files.
    const FOLDER: &'static str;

    /// Its id, which names its file.
    fn id(&self) -> &ResourceId;

    /// The name that the caller gave it, unique in the table.
    fn name(&self) -> &str;
}

/// All records of one kind, in memory and on disk.
///
/// Writers of one record take turns by themselves: the driver runs one operation a volume.
#[derive(Debug)]
pub struct Table<R, D = RealDisk> {
    folder: PathBuf,
    disk: D,
    rows: Mutex<BTreeMap<ResourceId, R>>,
}

impl<R: Record> Table<R> {
    /// Reads every record below `state_dir`.
    ///
    /// A file that cannot be understood is set aside as `<id>.json.bad` with a warning, never deleted.
    ///
    /// # Errors
    /// If the folder cannot be made or listed.
    pub fn open(state_dir: &Path) -> Result<Self, PathError> {
        Self::open_on(RealDisk, state_dir)
    }
}

impl<R: Record, D: Disk> Table<R, D> {
    /// As [`Table::open`], on a disk of the caller's choice.
    ///
    /// # Errors
    /// If the folder cannot be made or listed.
    pub fn open_on(disk: D, state_dir: &Path) -> Result<Self, PathError> {
        let folder = state_dir.join(R::FOLDER);
        fs::create_dir_all(&folder).map_err(failed("make folder", &folder))?;
        let mut rows = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(failed("list", &folder))? {
            let path = entry.map_err(failed("list", &folder))?.path();
            match path.extension().and_then(|e| e.to_str()) {
                Some("json") => {}
                // A write that did not get as far as its rename.
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
        // Nothing panics between two changes of the rows, so what a poisoned lock guards is whole.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record with this id.
    pub fn by_id(&self, id: &ResourceId) -> Option<R> {
        self.rows().get(id).cloned()
    }

    /// The record with this name.
    pub fn by_name(&self, name: &str) -> Option<R> {
        self.rows().values().find(|record| record.name() == name).cloned()
    }

    /// Looks at all records, in the order of their ids. Nothing else reads or writes meanwhile: be quick.
    pub fn read<T>(&self, look: impl FnOnce(&BTreeMap<ResourceId, R>) -> T) -> T {
        look(&self.rows())
    }

    /// Stores a record durably, replacing the one with its id.
    ///
    /// # Errors
    /// If it cannot be written; then the old one stays, or on a power cut the old or the new one.
    pub fn put(&self, record: R) -> Result<(), CallError> {
        let id = record.id().clone();
        {
            let rows = self.rows();
            if rows.len() >= MAX_RECORDS && !rows.contains_key(&id) {
                return Err(CallError::Exhausted {
                    what: R::FOLDER,
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

    /// Forgets a record durably. An unknown one is forgotten already.
    ///
    /// # Errors
    /// If its file cannot be removed; then it may be there or not after a restart.
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
        // `set_extension` would take a dot in the id for its own.
        self.folder.join(format!("{id}.json"))
    }
}

fn read_record<R: Record>(path: &Path) -> Result<R, String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    let record: R = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    let named_by_file = path.file_stem().and_then(|s| s.to_str());
    if named_by_file != Some(record.id().as_str()) {
        return Err(format!("the file is named {named_by_file:?}, the record in it {}", record.id()));
    }
    Ok(record)
}

/// The steps of a durable write. Each may be the last one before a power cut.
pub trait Disk: Send + Sync + 'static {
    /// Writes a new file or replaces one, readable by its owner only; not yet durable.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name, replacing what has it.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Those of the filesystem.
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
