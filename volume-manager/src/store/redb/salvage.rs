//! Finds the records in a corrupt file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use crate::store::envelope::{self, HEADER_BYTES, MAGIC};
use crate::store::plan::Total;
use crate::store::{MAX_ASIDE, MAX_ASIDE_BYTES, MAX_PAYLOAD_BYTES, RecordKey};

/// The maximum number of bytes of a corrupt file that are searched.
pub const MAX_SALVAGED_BYTES: u64 = 512 << 20;

/// An intact record that was found in a corrupt file by its envelope.
///
/// It is the latest one of its key that was found. It may have been removed since, a later one may be in the corrupt part, and
/// it may be of a failed commit: compare it with the mount table and the driver before acting on it. Its `Debug` has only the
/// length of the payload, which may contain secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvaged {
    /// The key.
    pub key: RecordKey,
    /// The sequence number of the commit that wrote it.
    pub sequence: u64,
    /// The payload.
    pub payload: Vec<u8>,
}

impl fmt::Debug for Salvaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Salvaged({}, commit {}, {} bytes)", self.key, self.sequence, self.payload.len())
    }
}

/// The records found in a corrupt file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvage {
    /// The records, in order of the keys. Several records of one key have the same sequence number: the bytes of a
    /// failed commit remain in the file, and the next commit has the same number, so that the latest record is
    /// unknown.
    pub records: Vec<Salvaged>,
    /// Whether the file may have more records, beyond the limits.
    pub truncated: bool,
}

/// Searches the bytes of a file for records. The file is only read, not opened as a database. The search covers the first
/// [`MAX_SALVAGED_BYTES`], and the first [`MAX_ASIDE`] records of [`MAX_ASIDE_BYTES`] in total. At most 2 MiB of the file are in
/// memory at a time, besides the records.
///
/// # Errors
/// If the file cannot be read.
pub fn salvage(path: impl AsRef<Path>) -> io::Result<Salvage> {
    salvage_first(path.as_ref(), MAX_SALVAGED_BYTES)
}

fn salvage_first(path: &Path, most: u64) -> io::Result<Salvage> {
    let file = File::open(path)?;
    let mut found = Found { truncated: file.metadata()?.len() > most, ..Found::default() };
    let mut file = file.take(most);
    let mut window = Vec::new();
    loop {
        let read = file.by_ref().take(WINDOW_BYTES as u64).read_to_end(&mut window)?;
        // An envelope that starts before this offset is completely in the window, unless the file is truncated.
        let end = if read < WINDOW_BYTES { window.len() } else { window.len() - LONGEST_ENVELOPE };
        found.search(&window, end);
        if read < WINDOW_BYTES {
            return Ok(found.finish());
        }
        window.drain(..end);
    }
}

/// The number of bytes that are read at a time.
const WINDOW_BYTES: usize = 1 << 20;

const LONGEST_ENVELOPE: usize = HEADER_BYTES + RecordKey::MAX_NAME_BYTES + 1 + MAX_PAYLOAD_BYTES;

/// The latest versions of a record.
struct Latest {
    sequence: u64,
    /// The payloads with this sequence number; more than one if the latest is unknown.
    payloads: Vec<Vec<u8>>,
}

/// The records found so far.
#[derive(Default)]
struct Found {
    latest: BTreeMap<RecordKey, Latest>,
    total: Total,
    truncated: bool,
}

impl Found {
    /// Adds the records that start in the first `end` bytes.
    fn search(&mut self, bytes: &[u8], end: usize) {
        let mut rest = bytes.get(..end).unwrap_or(bytes);
        let length = rest.len();
        // Skipping to the first byte of the magic is much faster than decoding at each byte.
        while let Ok(1..) = rest.skip_until(MAGIC[0]) {
            let found = bytes.get(length - rest.len() - 1..).unwrap_or_default();
            if let Ok(opened) = envelope::open_first(found) {
                self.add(opened.key, opened.sequence, opened.payload);
            }
        }
    }

    fn add(&mut self, key: RecordKey, sequence: u64, payload: &[u8]) {
        // The size of the packed row.
        let overhead = 4 + key.as_row().len() + HEADER_BYTES + key.as_row().len();
        let bytes = Some(overhead + payload.len());
        if let Some(latest) = self.latest.get_mut(&key) {
            let is_known = || latest.payloads.iter().any(|other| other == payload);
            if sequence < latest.sequence || sequence == latest.sequence && is_known() {
                return;
            }
            if sequence > latest.sequence {
                let outdated = latest.payloads.drain(..);
                outdated.for_each(|payload| self.total.change(Some(overhead + payload.len()), None));
                latest.sequence = sequence;
            }
        }
        let mut total = self.total;
        total.change(None, bytes);
        if total.rows > MAX_ASIDE || total.bytes > MAX_ASIDE_BYTES {
            self.truncated = true;
            return;
        }
        self.total = total;
        let latest = self.latest.entry(key).or_insert_with(|| Latest { sequence, payloads: Vec::new() });
        latest.payloads.push(payload.to_vec());
    }

    fn finish(self) -> Salvage {
        let records = self.latest.into_iter().flat_map(|(key, Latest { sequence, payloads })| {
            payloads.into_iter().map(move |payload| Salvaged { key: key.clone(), sequence, payload })
        });
        Salvage { records: records.collect(), truncated: self.truncated }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::RecordKind;

    #[test]
    fn finds_records_anywhere_in_a_long_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let key = |number: usize| RecordKey::new(RecordKind(1), number.to_be_bytes()).unwrap();
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        // Across the ends of the windows, including the longest envelopes.
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
        assert!(salvage(&path).unwrap().records == expected);
        bytes.truncate(bytes.len() - 1);
        expected.pop();
        fs::write(&path, &bytes).unwrap();
        assert!(salvage(&path).unwrap().records == expected);
    }

    #[test]
    fn finds_every_possibly_latest_version_and_no_older_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let key = RecordKey::new(RecordKind(1), "vol").unwrap();
        let write = |records: &[(u64, &str)]| {
            let bytes =
                records.iter().map(|(number, payload)| envelope::seal(&key, *number, payload.as_bytes()));
            fs::write(&path, bytes.collect::<Vec<_>>().concat()).unwrap();
            let salvage = salvage(&path).unwrap();
            let payloads =
                salvage.records.iter().map(|record| String::from_utf8(record.payload.clone()).unwrap());
            payloads.collect::<Vec<_>>()
        };
        assert_eq!(write(&[(7, "failed"), (7, "made"), (6, "older"), (7, "made")]), ["failed", "made"]);
        assert_eq!(write(&[(7, "failed"), (7, "made"), (8, "newer")]), ["newer"]);
    }

    #[test]
    fn reports_truncation_over_the_limits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let seal = |number: u64| {
            envelope::seal(&RecordKey::new(RecordKind(1), number.to_be_bytes()).unwrap(), 1, b"")
        };
        fs::write(&path, [seal(1), vec![0; 3 << 20], seal(2)].concat()).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        let found = |most| {
            let salvage = salvage_first(&path, most).unwrap();
            (salvage.records.len(), salvage.truncated)
        };
        assert_eq!((found(length), found(length - 1)), ((2, false), (1, true)));

        fs::write(&path, (0..=MAX_ASIDE).flat_map(seal).collect::<Vec<_>>()).unwrap();
        let salvage = salvage(&path).unwrap();
        assert_eq!((salvage.records.len() as u64, salvage.truncated), (MAX_ASIDE, true));
    }
}
