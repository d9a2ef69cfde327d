//! The journal on disk: one redb database file, of mode 0600.
//!
//! A commit is made in two phases and synced twice, so that an earlier one can never be lost to a later one that was cut off, and
//! an answer that was removed does not come back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ::redb::backends::FileBackend;
use ::redb::{
    Builder, CommitError, Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    StorageError, TableDefinition, TableError, TransactionError, WriteTransaction,
};

use super::{Change, Journal, JournalError, MAX_ASIDE, OpenJournalError};

/// The layout of the tables that is written.
pub const LAYOUT: u64 = 1;

const LAYOUT_NAME: &str = "layout";

/// What every redb file begins with.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Most bytes of the file that are kept in memory.
const CACHE: usize = 1 << 20;

const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("operations");
const ASIDE: TableDefinition<'_, u64, (u64, &[u8])> = TableDefinition::new("aside");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

/// A journal in a redb database file. One process at a time has it open.
#[derive(Debug)]
pub struct RedbJournal {
    path: PathBuf,
    database: Result<Database, String>,
}

/// A journal, and what became of the one that was there.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The journal.
    pub journal: RedbJournal,
    /// The damaged file, under the name that it has now, and what is wrong with it.
    pub set_aside: Option<(PathBuf, String)>,
}

impl RedbJournal {
    /// Opens the journal at a path, and makes it if there is no file. The directory must be there.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, is no journal, or is damaged.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, OpenJournalError> {
        let path = path.into();
        let database = open(&path)?;
        Ok(Self { path, database: Ok(database) })
    }

    /// As [`Self::open`], but gives a damaged file the end `.damaged`, in the place of an earlier one, and begins a new journal.
    /// What ran then is not known any more, and is done again when it is asked for.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, is no journal, or cannot be set aside.
    pub fn open_or_set_aside(path: impl Into<PathBuf>) -> Result<Opened, OpenJournalError> {
        let path = path.into();
        match Self::open(&path) {
            Ok(journal) => Ok(Opened { journal, set_aside: None }),
            Err(OpenJournalError::Damaged { what, .. }) => {
                let mut aside = path.clone().into_os_string();
                aside.push(".damaged");
                let aside = PathBuf::from(aside);
                fs::rename(&path, &aside).and_then(|()| sync_directory(&path)).map_err(disk(&path))?;
                Ok(Opened { journal: Self::open(path)?, set_aside: Some((aside, what)) })
            }
            Err(error) => Err(error),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn with<T>(
        &mut self,
        doing: &'static str,
        act: impl FnOnce(&Database) -> Result<T, Failure>,
    ) -> Result<T, JournalError> {
        let outcome = match &self.database {
            Ok(database) => act(database).map_err(|failure| failure.during(doing)),
            Err(since) => return Err(JournalError::Stopped { since: since.clone() }),
        };
        if let Err(error) = &outcome {
            self.database = Err(error.to_string());
        }
        outcome
    }
}

impl Journal for RedbJournal {
    fn load(&mut self, row: &mut dyn FnMut(u64, &[u8])) -> Result<(), JournalError> {
        self.with("the load", |database| {
            for found in database.begin_read()?.open_table(ROWS)?.iter()? {
                let (number, bytes) = found?;
                row(number.value(), bytes.value());
            }
            Ok(())
        })
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), JournalError> {
        if changes.is_empty() && self.database.is_ok() {
            return Ok(());
        }
        self.with("a commit", |database| {
            let transaction = begin(database)?;
            write(&transaction, changes)?;
            Ok(transaction.commit()?)
        })
    }

    fn aside(&mut self) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        self.with("the load", |database| {
            let mut rows = Vec::new();
            for found in database.begin_read()?.open_table(ASIDE)?.iter()? {
                let (_, value) = found?;
                let (row, bytes) = value.value();
                rows.push((row, bytes.to_vec()));
            }
            Ok(rows)
        })
    }

    fn reopen(&mut self) -> Result<(), JournalError> {
        // The lock on the file must be gone first.
        self.database = Err("it is being reopened".to_owned());
        match open(&self.path) {
            Ok(database) => {
                self.database = Ok(database);
                Ok(())
            }
            Err(error) => {
                let since = error.to_string();
                self.database = Err(since.clone());
                Err(JournalError::Failed { doing: "reopening", source: io::Error::other(since) })
            }
        }
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }
}

/// In two phases, which quick repair implies: with one, redb would take a damaged last commit for one that was cut off, and
/// bring back what it removed.
fn begin(database: &Database) -> Result<WriteTransaction, Failure> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

fn write(transaction: &WriteTransaction, changes: &[Change]) -> Result<(), Failure> {
    let mut rows = transaction.open_table(ROWS)?;
    for change in changes {
        match change {
            Change::Put(row, bytes) => drop(rows.insert(row, bytes.as_slice())?),
            Change::Remove(row) => drop(rows.remove(row)?),
            Change::SetAside(row) => {
                let Some(bytes) = rows.remove(row)?.map(|bytes| bytes.value().to_vec()) else { continue };
                let mut aside = transaction.open_table(ASIDE)?;
                let next = aside.last()?.map_or(0, |(last, _)| last.value().saturating_add(1));
                aside.insert(next, (*row, bytes.as_slice()))?;
                while aside.len()? > MAX_ASIDE as u64 {
                    aside.pop_first()?;
                }
            }
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<Database, OpenJournalError> {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let mut file = options.open(path).map_err(disk(path))?;
    let mut head = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head).map_err(disk(path))?;
    if !MAGIC.starts_with(&head) {
        let what = format!("it begins with \"{}\"", head.escape_ascii());
        return Err(OpenJournalError::Foreign { path: path.to_owned(), what });
    }
    if !head.is_empty() && head.len() < MAGIC.len() {
        let what = "it ends within its first bytes".to_owned();
        return Err(OpenJournalError::Damaged { path: path.to_owned(), what });
    }
    let database = start(file).map_err(|failure| failure.on(path))?;
    let found = layout(&database).map_err(|failure| failure.on(path))?;
    if found != LAYOUT {
        return Err(OpenJournalError::OtherLayout { path: path.to_owned(), found, supported: LAYOUT });
    }
    sync_directory(path).map_err(disk(path))?;
    Ok(database)
}

fn start(file: File) -> Result<Database, Failure> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(FileBackend::new(file)?)?)
}

/// The layout of the file; makes the tables of a new one.
fn layout(database: &Database) -> Result<u64, Failure> {
    let transaction = begin(database)?;
    let (known, empty) = {
        let numbers = transaction.open_table(NUMBERS)?;
        let known = numbers.get(LAYOUT_NAME)?.map(|layout| layout.value());
        (known, transaction.list_tables()?.count() == 1)
    };
    if let Some(found) = known {
        transaction.abort()?;
        return Ok(found);
    }
    if !empty {
        return Err(Failure::Foreign);
    }
    transaction.open_table(NUMBERS)?.insert(LAYOUT_NAME, LAYOUT)?;
    transaction.open_table(ROWS)?;
    transaction.open_table(ASIDE)?;
    transaction.commit()?;
    Ok(LAYOUT)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

fn disk(path: &Path) -> impl Fn(io::Error) -> OpenJournalError {
    let path = path.to_owned();
    move |source| OpenJournalError::Disk { path: path.clone(), source }
}

/// What redb says, by what it means here.
#[derive(Debug)]
enum Failure {
    Disk(io::Error),
    InUse,
    Foreign,
    Damaged(String),
}

impl Failure {
    fn during(self, doing: &'static str) -> JournalError {
        match self {
            Self::Disk(source) => JournalError::Failed { doing, source },
            Self::Damaged(what) => JournalError::Damaged { doing, what },
            Self::InUse => JournalError::Failed { doing, source: io::ErrorKind::ResourceBusy.into() },
            Self::Foreign => JournalError::Damaged { doing, what: "its tables are another's".to_owned() },
        }
    }

    fn on(self, path: &Path) -> OpenJournalError {
        let path = path.to_owned();
        match self {
            Self::Disk(source) => OpenJournalError::Disk { path, source },
            Self::Damaged(what) => OpenJournalError::Damaged { path, what },
            Self::InUse => OpenJournalError::InUse { path },
            Self::Foreign => {
                OpenJournalError::Foreign { path, what: "it is another database of redb".to_owned() }
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io(error) => match error.kind() {
                // So a file shows itself that was cut.
                io::ErrorKind::UnexpectedEof => Self::Damaged("it ends too early".to_owned()),
                io::ErrorKind::InvalidData => Self::Damaged(error.to_string()),
                _ => Self::Disk(error),
            },
            StorageError::Corrupted(what) => Self::Damaged(what),
            other => Self::Disk(io::Error::other(other.to_string())),
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Self::InUse,
            DatabaseError::Storage(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            TableError::TableTypeMismatch { .. } => Self::Foreign,
            other => Self::Damaged(other.to_string()),
        }
    }
}

macro_rules! by_storage {
    ($($error:ident),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                match error {
                    $error::Storage(error) => error.into(),
                    other => Self::Disk(io::Error::other(other.to_string())),
                }
            }
        }
    )*};
}

by_storage!(TransactionError, CommitError);

#[cfg(test)]
mod tests;
