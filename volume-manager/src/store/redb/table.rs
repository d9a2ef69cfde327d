//! The tables that a file has.

use ::redb::TableDefinition;

use crate::store::RecordKind;

/// A table of a database file: where one store has its records.
///
/// Each has a layout's number of its own, and what is quarantined of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The kind of its records, if the file has several tables: what is salvaged of a damaged file finds its table by it.
    pub kind: RecordKind,
}

impl Table {
    /// The only table of a file that has one, for records of any kind.
    pub(super) const ONLY: Self = Self::new("records", RecordKind(0));

    /// A table for records of this kind, which no other table of the file has. The name has no dot.
    #[must_use]
    pub const fn new(name: &'static str, kind: RecordKind) -> Self {
        Self { name, kind }
    }

    pub(super) fn names(self) -> Names {
        let part = |part: &str| format!("{}.{part}", self.name);
        Names { records: self.name.to_owned(), aside: part("aside"), numbers: part("numbers") }
    }
}

/// What the parts of a table are called in the file.
#[derive(Debug, Clone)]
pub(super) struct Names {
    records: String,
    aside: String,
    numbers: String,
}

impl Names {
    /// All of them.
    pub(super) fn all(&self) -> [&str; 3] {
        [&self.records, &self.aside, &self.numbers]
    }

    /// Records in their envelopes, by the row of their key.
    pub(super) fn records(&self) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
        TableDefinition::new(&self.records)
    }

    /// What was moved aside, packed, by number.
    pub(super) fn aside(&self) -> TableDefinition<'_, u64, &'static [u8]> {
        TableDefinition::new(&self.aside)
    }

    /// The layout's number and the counters.
    pub(super) fn numbers(&self) -> TableDefinition<'_, &'static str, u64> {
        TableDefinition::new(&self.numbers)
    }
}

/// How the tables of a file are opened.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) tables: Vec<Table>,
    /// Whether a table that cannot be used is set aside. If not, that is an error.
    pub(super) sets_aside: bool,
    /// Whether another table in the file is an error. If not, it is left alone.
    pub(super) is_all: bool,
}

impl Layout {
    /// A file that has one table and nothing else.
    pub(super) fn only() -> Self {
        Self { tables: vec![Table::ONLY], sets_aside: false, is_all: true }
    }
}

/// A table that could not be used. It is kept in the file, and an empty one is in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSetAside {
    /// Its name.
    pub table: &'static str,
    /// What it is called in the file now.
    pub kept: String,
    /// Why.
    pub reason: String,
}
