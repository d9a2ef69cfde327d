//! A disk that loses its power, or fails.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use redb::{Database, StorageBackend};

use super::super::tables::{Layout, check, make, unopened};
use super::super::{OpenFile, RedbStore, start};
use crate::store::OpenError;

/// A write that was not synced.
#[derive(Debug)]
enum Pending {
    Bytes(usize, Vec<u8>),
    Length(usize),
}

#[derive(Debug, Default)]
struct State {
    /// What a power cut leaves.
    durable: Vec<u8>,
    /// What the process sees.
    cached: Vec<u8>,
    pending: Vec<Pending>,
    /// So many writes and syncs are left until the power goes off.
    left: Option<u64>,
    off: bool,
    /// The number of the write or sync that fails, and how.
    failing: Option<(u64, i32)>,
    /// How many writes and syncs there have been.
    operations: u64,
    syncs: u64,
    written_bytes: usize,
    /// Whether a store has been made on it.
    made: bool,
}

impl State {
    /// Counts a write or sync. The one at which the power goes is begun: what it wrote may be there, or part of it.
    fn operation(&mut self, begun: Option<Pending>) -> io::Result<()> {
        if self.off {
            return Err(io::Error::other("the power is off"));
        }
        let number = self.operations;
        self.operations += 1;
        if let Some((at, error)) = self.failing
            && at == number
        {
            return Err(io::Error::from_raw_os_error(error));
        }
        if let Some(pending) = begun {
            match &pending {
                Pending::Bytes(at, bytes) => {
                    self.written_bytes += bytes.len();
                    apply(&mut self.cached, *at, bytes);
                }
                Pending::Length(length) => self.cached.resize(*length, 0),
            }
            self.pending.push(pending);
        }
        if let Some(left) = &mut self.left {
            if *left == 0 {
                self.off = true;
                return Err(io::Error::other("the power went off"));
            }
            *left -= 1;
        }
        Ok(())
    }
}

fn apply(disk: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if disk.len() < end {
        disk.resize(end, 0);
    }
    disk[at..end].copy_from_slice(bytes);
}

#[derive(Debug, Clone, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A store on this disk, which is made if none has been.
    pub(super) fn open(&self) -> Result<RedbStore, OpenError> {
        Ok(self.open_tables(Layout::only())?.remove(0))
    }

    /// The stores of several tables on this disk.
    pub(super) fn open_tables(&self, layout: Layout) -> Result<Vec<RedbStore>, OpenError> {
        let (disk, tables) = (self.clone(), layout.tables.clone());
        let open = move || disk.database(&layout);
        let database = open()?;
        let file = Arc::new(Mutex::new(OpenFile { open: Box::new(open), database: Ok(database) }));
        Ok(tables.into_iter().map(|table| RedbStore::new(table, &file)).collect())
    }

    fn database(&self, layout: &Layout) -> Result<Database, OpenError> {
        let path = "disk".as_ref();
        let database = start(self.clone()).map_err(unopened(path))?;
        if self.state().made {
            check(&database, layout, path)?;
        } else {
            make(&database, layout).map_err(unopened(path))?;
            self.state().made = true;
        }
        Ok(database)
    }

    /// Whether a store has been made on it, and so could have got its name.
    pub(super) fn is_made(&self) -> bool {
        self.state().made
    }

    pub(super) fn is_off(&self) -> bool {
        self.state().off
    }

    /// Lets the power go off after so many more writes and syncs.
    pub(super) fn cut_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// Ends the process, whose writes are still in the system's cache.
    pub(super) fn kill(&self) {
        let mut state = self.state();
        (state.off, state.left) = (false, None);
    }

    /// Ends the power and gives it back. Of each write that was not synced all, nothing, the beginning up to any byte,
    /// or any of its sectors may be there, whatever became of the writes before it.
    pub(super) fn cut(&self, chance: &mut Rng) {
        let mut state = self.state();
        let mut durable = std::mem::take(&mut state.durable);
        let mood = chance.u8(..4);
        for pending in std::mem::take(&mut state.pending) {
            let fate = if mood == 0 { 0 } else { chance.u8(..4) };
            match (pending, fate) {
                (_, 0) => {}
                (Pending::Length(length), _) => durable.resize(length, 0),
                (Pending::Bytes(at, bytes), 1) => apply(&mut durable, at, &bytes),
                (Pending::Bytes(at, bytes), 2) => {
                    let torn = chance.usize(..=bytes.len());
                    apply(&mut durable, at, &bytes[..torn]);
                }
                (Pending::Bytes(at, bytes), _) => {
                    for (number, sector) in bytes.chunks(512).enumerate() {
                        if chance.u8(..2) == 0 {
                            apply(&mut durable, at + number * 512, sector);
                        }
                    }
                }
            }
        }
        state.cached.clone_from(&durable);
        state.durable = durable;
        (state.off, state.left) = (false, None);
    }

    /// Lets the write or sync of this number fail with an error of the system.
    pub(super) fn fail(&self, number: u64, error: i32) {
        self.state().failing = Some((number, error));
    }

    pub(super) fn heal(&self) {
        self.state().failing = None;
    }

    /// How many syncs have succeeded.
    pub(super) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// How many bytes were written.
    pub(super) fn written_bytes(&self) -> usize {
        self.state().written_bytes
    }

    /// How many writes and syncs there have been.
    pub(super) fn operations(&self) -> u64 {
        self.state().operations
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        if state.off {
            return Err(io::Error::other("the power is off"));
        }
        let at = usize::try_from(offset).unwrap();
        let bytes = state.cached.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.state().operation(Some(Pending::Length(usize::try_from(length).unwrap())))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        if let Err(error) = state.operation(None) {
            if !state.off {
                // As Linux does: what could not be written counts as written from now on.
                state.pending.retain(|pending| matches!(pending, Pending::Length(_)));
            }
            return Err(error);
        }
        let state = &mut *state;
        state.syncs += 1;
        for pending in state.pending.drain(..) {
            match pending {
                Pending::Bytes(at, bytes) => apply(&mut state.durable, at, &bytes),
                Pending::Length(length) => state.durable.resize(length, 0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state().operation(Some(Pending::Bytes(usize::try_from(offset).unwrap(), data.to_vec())))
    }
}
