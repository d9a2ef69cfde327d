//! The rows of a store: bytes by key, in three tables. This is what a medium implements.

use std::fmt;

use super::StoreError;

/// The bytes of a store, on a medium such as a database or files. [`Store`](super::Store) adds the records, their versions and
/// checksums, the limits and the quarantine; rows are opaque to an implementation.
///
/// The contract, checked by `conformance` (feature `testing`) as far as it does not need a power cut:
///
/// - **Atomicity:** a [`write`](Self::write) is there as a whole or absent as a whole, whatever happens during it: an error, the
///   end of the process, or a power cut.
/// - **Durability:** when [`write`](Self::write) returns, its rows survive a power cut. What [`get`](Self::get) and
///   [`scan`](Self::scan) return is durable too.
/// - **Order:** each call sees every write that returned before it. A batch has each row at most once.
/// - **Damage:** bytes may be returned as they are found; the store detects a damaged record, and quarantines it.
/// - **Failure:** after any error the store is stopped: it calls nothing but [`reopen`](Self::reopen), which establishes what the
///   medium really has. Whether a failed write is there is unknown until then, and either is correct.
/// - **Threads:** one call at a time, and each call may come from another thread. Each may block; `Volumes` makes them on a
///   thread for blocking calls.
/// - **Cancellation:** a call is never interrupted. When the process ends during a call, a power cut is the model.
///
/// One process at a time uses the rows; an implementation should lock its medium.
///
/// | Table | Keys | Values |
/// |---|---|---|
/// | [`Records`](RowTable::Records) | 2 to 1,025 bytes of any value | up to [`MAX_ROW_BYTES`](super::MAX_ROW_BYTES) |
/// | [`Aside`](RowTable::Aside) | 8 bytes: a number, big-endian | up to [`MAX_ROW_BYTES`](super::MAX_ROW_BYTES) |
/// | [`Counters`](RowTable::Counters) | an ASCII name of up to 16 bytes | 8 bytes: a number, big-endian |
///
/// The rows of a store have at most 128 MiB and 110,002 rows; see the limits of the [module](super).
pub trait Rows: Send {
    /// Returns the value of a row, or `None` if there is no such row. An empty value is a value.
    ///
    /// # Errors
    /// If the medium cannot be read.
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Calls `visit` with the key and value of each row of a table, once each, in any order.
    ///
    /// # Errors
    /// If the medium cannot be read. Some rows may have been visited.
    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError>;

    /// Writes and removes rows, and returns when all changes are durable.
    ///
    /// # Errors
    /// If the medium cannot be written: then all or none of the changes are there.
    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError>;

    /// Opens the medium again after an error, and reads what it really has. Nothing that was only cached may remain.
    ///
    /// # Errors
    /// If the medium cannot be opened now. It is called again later.
    fn reopen(&mut self) -> Result<(), StoreError>;
}

impl<R: Rows + ?Sized> Rows for Box<R> {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).get(table, key)
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        (**self).scan(table, visit)
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        (**self).write(batch)
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        (**self).reopen()
    }
}

/// A table of rows. Equal keys of two tables are different rows.
#[allow(clippy::exhaustive_enums, reason = "a medium has exactly these tables")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowTable {
    /// The records in their envelopes.
    Records,
    /// The quarantined records whose bytes were moved aside.
    Aside,
    /// The counters of the store.
    Counters,
}

impl RowTable {
    /// All tables.
    pub const ALL: [Self; 3] = [Self::Records, Self::Aside, Self::Counters];

    /// A name for the table on the medium: `records`, `aside` or `counters`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Aside => "aside",
            Self::Counters => "counters",
        }
    }
}

/// The change of one row. Its `Debug` has only the lengths, since a value may contain secrets.
#[allow(clippy::exhaustive_structs, reason = "a row and its new value")]
#[derive(Clone, PartialEq, Eq)]
pub struct RowWrite {
    /// The table of the row.
    pub table: RowTable,
    /// The key of the row.
    pub key: Vec<u8>,
    /// The new value; `None` removes the row, if it exists.
    pub value: Option<Vec<u8>>,
}

impl fmt::Debug for RowWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowWrite")
            .field("table", &self.table)
            .field("key_bytes", &self.key.len())
            .field("value_bytes", &self.value.as_ref().map(Vec::len))
            .finish()
    }
}
