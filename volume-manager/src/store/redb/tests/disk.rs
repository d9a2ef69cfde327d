//! A disk with power cuts and failures.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use redb::{Database, StorageBackend};

use super::super::rows::RedbRows;
use super::super::tables::{Layout, check, make, open_error};
use super::super::{OpenFile, open_backend};
use crate::store::{OpenStoreError, Store};

/// An unsynced write.
#[derive(Debug)]
enum Pending {
    Bytes(usize, Vec<u8>),
    Length(usize),
}

#[derive(Debug, Default)]
struct State {
    /// The durable content.
    durable: Vec<u8>,
    /// The content that the process sees.
    cached: Vec<u8>,
    pending: Vec<Pending>,
    /// The writes and syncs until the power cut.
    left: Option<u64>,
    off: bool,
    /// The write or sync that fails, with its errno.
    failing: Option<(u64, i32)>,
    /// The number of writes and syncs.
    operations: u64,
    syncs: u64,
    written_bytes: usize,
    /// Whether a store was created on the disk.
    made: bool,
}

impl State {
    /// Counts a write or sync. The one at the power cut may be partly durable.
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

    /// Opens a store on this disk, creating it if necessary.
    pub(super) fn open(&self) -> Result<Store, OpenStoreError> {
        Ok(self.open_tables(Layout::only())?.remove(0))
    }

    /// Opens the stores of several tables on this disk.
    pub(super) fn open_tables(&self, layout: Layout) -> Result<Vec<Store>, OpenStoreError> {
        let (disk, tables) = (self.clone(), layout.tables.clone());
        let open = move || disk.database(&layout);
        let database = open()?;
        let file = Arc::new(Mutex::new(OpenFile { open: Box::new(open), database: Ok(database) }));
        Ok(tables
            .into_iter()
            .map(|table| Store::new(RedbRows::new(table.names(), Arc::clone(&file))))
            .collect())
    }

    fn database(&self, layout: &Layout) -> Result<Database, OpenStoreError> {
        let path = "disk".as_ref();
        let database = open_backend(self.clone()).map_err(open_error(path))?;
        if self.state().made {
            check(&database, layout, path)?;
        } else {
            make(&database, layout).map_err(open_error(path))?;
            self.state().made = true;
        }
        Ok(database)
    }

    /// Whether a store was created completely, so that its file could be renamed.
    pub(super) fn is_made(&self) -> bool {
        self.state().made
    }

    pub(super) fn is_off(&self) -> bool {
        self.state().off
    }

    /// Schedules a power cut after a number of writes and syncs.
    pub(super) fn cut_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// Kills the process; its writes survive in the system's cache.
    pub(super) fn kill(&self) {
        let mut state = self.state();
        (state.off, state.left) = (false, None);
    }

    /// Cuts the power and restores it. Of each unsynced write, everything, nothing, a prefix of any length, or any of its
    /// sectors may be durable, independent of earlier writes.
    pub(super) fn cut(&self, rng: &mut Rng) {
        let mut state = self.state();
        let mut durable = std::mem::take(&mut state.durable);
        let mood = rng.u8(..4);
        for pending in std::mem::take(&mut state.pending) {
            let fate = if mood == 0 { 0 } else { rng.u8(..4) };
            match (pending, fate) {
                (_, 0) => {}
                (Pending::Length(length), _) => durable.resize(length, 0),
                (Pending::Bytes(at, bytes), 1) => apply(&mut durable, at, &bytes),
                (Pending::Bytes(at, bytes), 2) => {
                    let torn = rng.usize(..=bytes.len());
                    apply(&mut durable, at, &bytes[..torn]);
                }
                (Pending::Bytes(at, bytes), _) => {
                    for (number, sector) in bytes.chunks(512).enumerate() {
                        if rng.u8(..2) == 0 {
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

    /// Makes the write or sync with this number fail with an errno.
    pub(super) fn fail(&self, number: u64, error: i32) {
        self.state().failing = Some((number, error));
    }

    pub(super) fn heal(&self) {
        self.state().failing = None;
    }

    /// The number of successful syncs.
    pub(super) fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// The number of written bytes.
    pub(super) fn written_bytes(&self) -> usize {
        self.state().written_bytes
    }

    /// The number of writes and syncs.
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
                // As in Linux, a page that could not be written is marked clean.
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
