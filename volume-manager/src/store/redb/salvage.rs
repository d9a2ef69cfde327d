//! What is left of a damaged file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::rows::Failure;
use super::{RedbStore, Settings, file};
use crate::store::envelope::{self, HEADER_BYTES, MAGIC};
use crate::store::{MAX_PAYLOAD_BYTES, OpenError, RecordKey};

/// The most bytes of a damaged file that are looked at.
pub const MAX_SALVAGED_BYTES: u64 = 256 << 20;

/// A record that was found in a damaged file, whole, by its [envelope](crate::store::envelope).
///
/// It is the latest of its key that was found, and was right once. It may have been removed since, or the latest may
/// be in the part that is damaged: compare it with the mount table and the driver before acting on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvaged {
    /// The key.
    pub key: RecordKey,
    /// The number of the commit that wrote it.
    pub sequence: u64,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Searches the bytes of a file for records, in order of the keys. The file is only read, and not even opened as a
/// database; its first [`MAX_SALVAGED_BYTES`] count. At most 2 MiB of it are in memory at a time, beside the records.
///
/// # Errors
/// If the file cannot be read.
pub fn salvage(path: impl AsRef<Path>) -> io::Result<Vec<Salvaged>> {
    let mut file = File::open(path)?.take(MAX_SALVAGED_BYTES);
    let mut found = BTreeMap::new();
    let mut window = Vec::new();
    loop {
        let read = file.by_ref().take(WINDOW_BYTES as u64).read_to_end(&mut window)?;
        // An envelope that begins before this is whole in the window, unless the file ends too early for it.
        let clear = if read < WINDOW_BYTES { window.len() } else { window.len() - LONGEST_ENVELOPE };
        search(&window, clear, &mut found);
        if read < WINDOW_BYTES {
            return Ok(found.into_values().collect());
        }
        window.drain(..clear);
    }
}

/// How many bytes are read at a time.
const WINDOW_BYTES: usize = 1 << 20;

const LONGEST_ENVELOPE: usize = HEADER_BYTES + RecordKey::MAX_NAME_BYTES + 1 + MAX_PAYLOAD_BYTES;

/// Adds the latest of each record that begins in the first `clear` bytes.
fn search(bytes: &[u8], clear: usize, found: &mut BTreeMap<RecordKey, Salvaged>) {
    let begins = |at: &usize| bytes.get(*at..).is_some_and(|rest| rest.starts_with(&MAGIC));
    for at in (0..clear).filter(begins) {
        let Ok(opened) = envelope::open_first(bytes.get(at..).unwrap_or_default()) else { continue };
        if found.get(&opened.key).is_none_or(|earlier| earlier.sequence < opened.sequence) {
            let payload = opened.payload.to_vec();
            let salvaged = Salvaged { key: opened.key.clone(), sequence: opened.sequence, payload };
            found.insert(opened.key, salvaged);
        }
    }
}

/// What became of a damaged store.
#[derive(Debug)]
#[non_exhaustive]
pub struct StartedOver {
    /// Why.
    pub reason: OpenError,
    /// Where the damaged file is now. It is never deleted.
    pub kept: PathBuf,
    /// What was found in it. None of it is in the new store.
    pub salvaged: Vec<Salvaged>,
}

/// Opens a store as [`RedbStore::open`] does; but if its file is damaged, keeps that under another name and starts
/// over with an empty one.
///
/// # Errors
/// As [`RedbStore::open`], but not for damage; and if the damaged file cannot be renamed or read.
pub fn open_or_start_over(
    path: impl Into<PathBuf>,
    settings: Settings,
) -> Result<(RedbStore, Option<StartedOver>), OpenError> {
    let path = path.into();
    let reason = match RedbStore::open(&path, settings) {
        Ok(store) => return Ok((store, None)),
        Err(error @ OpenError::Damaged { .. }) => error,
        Err(error) => return Err(error),
    };
    let disk = |error| Failure::Disk(error).on(&path);
    let salvaged = salvage(&path).map_err(disk)?;
    let kept = (1..=u32::MAX)
        .map(|number| file::sibling(&path, &format!(".damaged-{number}")))
        .find(|name| fs::symlink_metadata(name).is_err())
        .ok_or_else(|| disk(io::ErrorKind::AlreadyExists.into()))?;
    fs::rename(&path, &kept).and_then(|()| file::sync_directory(&path)).map_err(disk)?;
    let store = RedbStore::open(&path, settings)?;
    Ok((store, Some(StartedOver { reason, kept, salvaged })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RecordKind;

    #[test]
    fn records_are_found_wherever_they_lie_in_a_long_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let key = |number: usize| RecordKey::new(RecordKind(1), number.to_be_bytes()).unwrap();
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        // Across the ends of the windows, the longest ones too.
        let places = [
            0,
            WINDOW_BYTES - LONGEST_ENVELOPE,
            WINDOW_BYTES - 2,
            2 * WINDOW_BYTES - 100_000,
            3 * WINDOW_BYTES,
        ];
        for (number, place) in places.into_iter().enumerate() {
            bytes.resize(place.max(bytes.len()), b'V');
            let payload = vec![7; if number % 2 == 1 { MAX_PAYLOAD_BYTES } else { 10 }];
            bytes.extend(envelope::seal(&key(number), 1, &payload));
            expected.push(Salvaged { key: key(number), sequence: 1, payload });
        }
        fs::write(&path, &bytes).unwrap();
        assert!(salvage(&path).unwrap() == expected);
        bytes.truncate(bytes.len() - 1);
        expected.pop();
        fs::write(&path, &bytes).unwrap();
        assert!(salvage(&path).unwrap() == expected);
    }
}
