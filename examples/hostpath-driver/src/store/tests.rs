//! Checks the records after a power cut at each step of a write.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Note {
    id: ResourceId,
    text: String,
}

impl Note {
    fn new(id: &str, text: &str) -> Self {
        Self { id: ResourceId::parse(id).unwrap(), text: text.to_owned() }
    }
}

impl Record for Note {
    const FOLDER: &'static str = "notes";

    fn id(&self) -> &ResourceId {
        &self.id
    }

    fn name(&self) -> &str {
        &self.text
    }
}

/// A disk that stops after a number of steps, as at a power cut. Half of the bytes that are not synced by then are lost.
struct CutDisk {
    steps_left: AtomicUsize,
}

impl CutDisk {
    fn step(&self, act: impl FnOnce() -> io::Result<()>, torn: impl FnOnce()) -> io::Result<()> {
        let before = self
            .steps_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(1)));
        match before.unwrap() {
            0 => Err(io::Error::other("no power")),
            1 => {
                torn();
                Err(io::Error::other("power cut"))
            }
            _ => act(),
        }
    }
}

impl Disk for CutDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step(|| RealDisk.write(path, bytes), || fs::write(path, &bytes[..bytes.len() / 2]).unwrap())
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let lose_half = || {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        };
        self.step(|| RealDisk.sync_file(path), lose_half)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|| RealDisk.rename(from, to), || {})
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|| RealDisk.remove(path), || {})
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.step(|| RealDisk.sync_folder(path), || {})
    }
}

const STEPS_TO_OPEN: usize = 1;
const STEPS_OF_A_PUT: usize = 4;

#[test]
fn power_cut_during_a_write_leaves_the_old_or_new_record() {
    let (old, new) = (Note::new("n", "old"), Note::new("n", "new"));
    for cut_at in 1..=STEPS_OF_A_PUT {
        let dir = tempfile::tempdir().unwrap();
        Table::open(dir.path()).unwrap().put(old.clone()).unwrap();
        let disk = CutDisk { steps_left: AtomicUsize::new(STEPS_TO_OPEN + cut_at) };
        let cut = Table::<Note, _>::open_on(disk, dir.path()).unwrap();
        assert!(cut.put(new.clone()).is_err(), "step {cut_at} must exist");
        assert_eq!(cut.by_id(&old.id), Some(old.clone()), "memory keeps what was there");

        let table = Table::<Note>::open(dir.path()).unwrap();
        let found = table.by_id(&old.id).unwrap();
        assert!(found == old || found == new, "cut at step {cut_at}: {found:?}");
        let files: Vec<_> =
            fs::read_dir(dir.path().join("notes")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files, ["n.json"], "cut at step {cut_at} left something");
    }
}

#[test]
fn a_write_has_no_more_steps_than_are_tested() {
    let dir = tempfile::tempdir().unwrap();
    let disk = CutDisk { steps_left: AtomicUsize::new(STEPS_TO_OPEN + STEPS_OF_A_PUT + 1) };
    Table::open_on(disk, dir.path()).unwrap().put(Note::new("n", "x")).unwrap();
}

#[test]
fn quarantines_an_unreadable_record() {
    let dir = tempfile::tempdir().unwrap();
    Table::open(dir.path()).unwrap().put(Note::new("good", "g")).unwrap();
    let folder = dir.path().join("notes");
    fs::write(folder.join("broken.json"), "{\"id\":").unwrap();
    fs::copy(folder.join("good.json"), folder.join("copy.json")).unwrap();

    let table = Table::<Note>::open(dir.path()).unwrap();
    assert_eq!(table.read(BTreeMap::len), 1);
    assert!(folder.join("broken.json.bad").exists() && folder.join("copy.json.bad").exists());
}

#[test]
fn a_removed_record_frees_its_name_and_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let (table, note) = (Table::open(dir.path()).unwrap(), Note::new("a.b", "name"));
    table.put(note.clone()).unwrap();
    assert_eq!(table.by_name("name"), Some(note.clone()));
    table.remove(&note.id).unwrap();
    table.remove(&note.id).unwrap();
    assert_eq!((table.by_name("name"), table.by_id(&note.id)), (None, None));
    assert_eq!(Table::<Note>::open(dir.path()).unwrap().read(BTreeMap::len), 0);
}
