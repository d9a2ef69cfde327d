//! A store of your own: the rows in one text file, a line for each, replaced as a whole by every write.
//!
//! `cargo run -p embed --bin own_store -- DIR` records a start and lists all of them. Its test runs the conformance suite. For
//! volumes: `Parts::new(Store::new(FileRows::open(directory)?), mounts, secrets)`.
#![allow(clippy::print_stdout, reason = "an example's output")]
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use volume_manager::store::{Change, RecordKey, RecordKind, RowTable, RowWrite, Rows, Store, StoreError};

type RowKey = (RowTable, Vec<u8>);
type Contents = BTreeMap<RowKey, Vec<u8>>;

/// The rows in `DIRECTORY/rows.txt`, all of them in memory too. The lock keeps other processes out.
struct FileRows {
    directory: PathBuf,
    contents: Contents,
    _lock: File,
}

impl FileRows {
    fn open(directory: &Path) -> Result<Self, StoreError> {
        let lock = File::create(directory.join("lock"))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self { directory: directory.to_owned(), contents: read(directory)?, _lock: lock })
    }
}

impl Rows for FileRows {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.contents.get(&(table, key.to_vec())).cloned())
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.contents
            .iter()
            .filter(|((of, _), _)| *of == table)
            .for_each(|((_, key), value)| visit(key, value));
        Ok(())
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        let mut contents = self.contents.clone();
        for RowWrite { table, key, value } in batch {
            match value {
                Some(value) => contents.insert((*table, key.clone()), value.clone()),
                None => contents.remove(&(*table, key.clone())),
            };
        }
        replace(&self.directory, &contents)?;
        self.contents = contents;
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.contents = read(&self.directory)?;
        Ok(())
    }
}

/// Replaces the file: after a power cut there is the old one or the new one; when this returns, the new one.
fn replace(directory: &Path, contents: &Contents) -> io::Result<()> {
    let new = directory.join("rows.new");
    let mut file = File::create(&new)?;
    for ((table, key), value) in contents {
        writeln!(file, "{} {} {}", table.name(), hex(key), hex(value))?;
    }
    file.sync_all()?;
    fs::rename(&new, directory.join("rows.txt"))?;
    File::open(directory)?.sync_all()
}

/// Reads the file. What is read must be durable, also if the last process ended between the renaming and the sync.
fn read(directory: &Path) -> io::Result<Contents> {
    File::open(directory)?.sync_all()?;
    let text = match fs::read_to_string(directory.join("rows.txt")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contents::new()),
        text => text?,
    };
    let rows: Option<Contents> = text.lines().map(row).collect();
    rows.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "rows.txt has a line that is not a row"))
}

fn row(line: &str) -> Option<(RowKey, Vec<u8>)> {
    let (name, row) = line.split_once(' ')?;
    let (key, value) = row.split_once(' ')?;
    let table = RowTable::ALL.into_iter().find(|table| table.name() == name)?;
    Some(((table, bytes(key)?), bytes(value)?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: own_store DIR")?;
    let mut store = Store::new(FileRows::open(directory.as_ref())?);
    let key = RecordKey::new(RecordKind(200), format!("start {:06}", store.load()?.records.len() + 1))?;
    store.commit(&[Change::Put(key, std::process::id().to_string().into_bytes())])?;
    for (key, payload) in store.load()?.records {
        println!("{} by process {}", key.name().escape_ascii(), payload.escape_ascii());
    }
    Ok(())
}

#[test]
fn conforms() {
    volume_manager::store::conformance::run(|| {
        let directory = tempfile::tempdir().expect("a directory");
        move || FileRows::open(directory.path())
    })
    .expect("the contract holds");
}
