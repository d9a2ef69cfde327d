use std::os::unix::fs::PermissionsExt;

use super::super::conformance::{self, Medium};
use super::*;

struct File(tempfile::TempDir);

impl File {
    fn path(&self) -> PathBuf {
        self.0.path().join("operations.redb")
    }
}

impl Medium for File {
    fn open(&mut self) -> Result<Box<dyn Journal>, String> {
        RedbJournal::open(self.path())
            .map(|journal| Box::new(journal) as _)
            .map_err(|error| error.to_string())
    }
}

fn file() -> File {
    File(tempfile::tempdir().unwrap())
}

#[test]
fn the_journal_on_disk_conforms() {
    conformance::run(|| Ok(file())).unwrap();
}

#[test]
fn its_file_is_for_its_owner_alone_and_for_one_process() {
    let file = file();
    let journal = RedbJournal::open(file.path()).unwrap();
    assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(journal.bytes() > 0);
    assert!(matches!(RedbJournal::open(file.path()), Err(OpenJournalError::InUse { .. })));
    drop(journal);
    RedbJournal::open(file.path()).unwrap();
}

#[test]
fn a_file_that_is_something_else_is_left_alone() {
    let file = file();
    fs::write(file.path(), "#!/bin/sh").unwrap();
    assert!(matches!(RedbJournal::open_or_set_aside(file.path()), Err(OpenJournalError::Foreign { .. })));
    assert_eq!(fs::read(file.path()).unwrap(), b"#!/bin/sh");
    fs::remove_file(file.path()).unwrap();
    let other = Database::create(file.path()).unwrap();
    let transaction = other.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u64, u64>::new("other")).unwrap().insert(1, 1).unwrap();
    transaction.commit().unwrap();
    drop(other);
    assert!(matches!(RedbJournal::open(file.path()), Err(OpenJournalError::Foreign { .. })));
}

#[test]
fn a_layout_of_a_later_version_is_left_alone() {
    let file = file();
    let journal = RedbJournal::open(file.path()).unwrap();
    let database = journal.database.as_ref().unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(NUMBERS).unwrap().insert(LAYOUT_NAME, 2).unwrap();
    transaction.commit().unwrap();
    drop(journal);
    let found = RedbJournal::open_or_set_aside(file.path());
    assert!(matches!(found, Err(OpenJournalError::OtherLayout { found: 2, .. })), "{found:?}");
}

#[test]
fn a_damaged_file_is_set_aside_and_a_new_journal_begun() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
        ("overwritten", |bytes| bytes[64..4096].fill(0xa5)),
        ("turned", |bytes| bytes[4096..].fill(0x5a)),
        ("nearly empty", |bytes| bytes.truncate(4)),
    ];
    for (what, damage) in damages {
        let file = file();
        RedbJournal::open(file.path()).unwrap().commit(&[Change::Put(1, vec![7; 9000])]).unwrap();
        let mut bytes = fs::read(file.path()).unwrap();
        damage(&mut bytes);
        fs::write(file.path(), &bytes).unwrap();
        let mut opened =
            RedbJournal::open_or_set_aside(file.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (aside, _) = opened.set_aside.unwrap_or_else(|| panic!("{what}: nothing set aside"));
        assert_eq!(fs::read(aside).unwrap(), bytes, "{what}");
        let mut rows = 0;
        opened.journal.load(&mut |_, _| rows += 1).unwrap();
        assert_eq!(rows, 0, "{what}");
    }
}

#[test]
fn a_journal_that_was_told_to_stop_goes_on_after_reopening() {
    let file = file();
    let mut journal = RedbJournal::open(file.path()).unwrap();
    journal.commit(&[Change::Put(1, vec![1])]).unwrap();
    journal.database = Err("the disk".to_owned());
    assert!(matches!(journal.commit(&[Change::Remove(1)]), Err(JournalError::Stopped { .. })));
    assert!(matches!(journal.commit(&[]), Err(JournalError::Stopped { .. })));
    journal.reopen().unwrap();
    let mut rows = Vec::new();
    journal.load(&mut |row, _| rows.push(row)).unwrap();
    assert_eq!(rows, [1]);
}
