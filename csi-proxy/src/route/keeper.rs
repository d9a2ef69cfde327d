//! A ledger whose changes are on the disk before anybody acts on them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::election::Ballot;
use super::ledger::{Attempt, End, Event, Ledger};
use super::refusal::Refusal;
use super::request::VolumeRequest;
use crate::call::NodeId;
use crate::operation::Subject;
use crate::operation::journal::{Change, Journal, JournalError, OpenJournalError};

/// Most batches in one commit.
const GROUP: usize = 256;

/// A ledger and the thread that writes its journal, which ends with this.
#[derive(Debug)]
pub(super) struct Keeper {
    ledger: Mutex<Ledger>,
    queue: Option<mpsc::Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<State>,
}

/// What the thread tells.
#[derive(Debug, Default)]
struct State {
    /// Batches that are not on the disk yet.
    waiting: AtomicUsize,
    failed: AtomicBool,
}

type Done = Result<(), Arc<str>>;

struct Batch {
    changes: Vec<Change>,
    done: oneshot::Sender<Done>,
}

impl Keeper {
    /// Reads a journal. Rows that cannot be read are set aside.
    pub(super) fn open(mut ledger: Ledger, mut journal: Box<dyn Journal>) -> Result<Self, OpenJournalError> {
        let mut aside = Vec::new();
        journal.load(&mut |row, bytes| {
            if let Err(quarantined) = ledger.restore(row, bytes) {
                tracing::warn!(
                    row, defect = %quarantined.defect,
                    "a row of the table of placements cannot be read and is set aside; its volume is looked for at every node"
                );
                aside.push(Change::SetAside(row));
            }
        })?;
        if !aside.is_empty() {
            // In one commit: the next start finds nothing to set aside.
            journal.commit(&aside)?;
        }
        let (queue, batches) = mpsc::channel();
        let state = Arc::new(State::default());
        let writing = Arc::clone(&state);
        let work = move || Writer { journal, state: writing, backlog: BTreeMap::new() }.run(&batches);
        let thread = std::thread::Builder::new().name("csi-placements".to_owned()).spawn(work);
        let thread = Some(thread.map_err(OpenJournalError::Thread)?);
        Ok(Self { ledger: Mutex::new(ledger), queue: Some(queue), thread, state })
    }

    /// Where something is.
    pub(super) fn node_of(&self, subject: &Subject) -> Option<NodeId> {
        self.ledger().node_of(subject).cloned()
    }

    /// What nodes have said of themselves.
    pub(super) fn descriptions(&self) -> Vec<(NodeId, Bytes)> {
        let ledger = self.ledger();
        ledger.descriptions().map(|(node, description)| (node.clone(), description.clone())).collect()
    }

    /// The decommissioned nodes.
    pub(super) fn decommissioned(&self) -> Vec<NodeId> {
        self.ledger().decommissioned().cloned().collect()
    }

    /// Whether something is on a node, or may be.
    pub(super) fn has_rows_of(&self, node: &NodeId) -> bool {
        self.ledger().has_rows_of(node)
    }

    /// Whether something is on its way to the disk.
    #[cfg(test)]
    pub(super) fn is_writing(&self) -> bool {
        self.state.waiting.load(Ordering::Acquire) > 0
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.ledger().rows()
    }

    /// Takes in what was found, deleted or forgotten, and waits until it is on the disk.
    pub(super) async fn handle(&self, event: Event<'_>) -> Result<(), Refusal> {
        let written = {
            let mut ledger = self.ledger();
            let step = ledger.handle(event)?;
            self.write(step.changes)
        };
        written.done().await
    }

    /// The attempt to make a volume, once its placement is on the disk.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        request: &VolumeRequest,
        ballot: Ballot<'_>,
    ) -> Result<OpenAttempt, Refusal> {
        if self.state.failed.load(Ordering::Acquire) {
            // Nothing is chosen while it cannot be kept.
            let written = self.write(Vec::new());
            written.done().await?;
        }
        let (attempt, written) = {
            let mut ledger = self.ledger();
            let step = ledger.handle(Event::Create { request, ballot })?;
            let attempt = step.attempt.ok_or(Refusal::NoNodeThere)?;
            (attempt, self.write(step.changes))
        };
        let keeper = Arc::clone(self);
        let open = OpenAttempt { keeper, request: request.clone(), attempt, open: true };
        match written.done().await {
            Ok(()) => Ok(open),
            Err(refusal) => {
                // What cannot be written is told already.
                let _ = open.end(End::NeverLeft).await;
                Err(refusal)
            }
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues changes. To be called while the ledger is locked that they come from, so that they keep their order.
    fn write(&self, changes: Vec<Change>) -> Written {
        // What was queued before may be what a step without changes relies on.
        let idle =
            self.state.waiting.load(Ordering::Acquire) == 0 && !self.state.failed.load(Ordering::Acquire);
        if changes.is_empty() && idle {
            return Written(None);
        }
        let (done, written) = oneshot::channel();
        self.state.waiting.fetch_add(1, Ordering::AcqRel);
        if let Some(queue) = &self.queue {
            // The thread has panicked if this fails, which `done` tells.
            let _ = queue.send(Batch { changes, done });
        }
        Written(Some(written))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It has said by itself how it ended.
            let _ = thread.join();
        }
    }
}

/// Changes on their way to the disk.
struct Written(Option<oneshot::Receiver<Done>>);

impl Written {
    async fn done(self) -> Result<(), Refusal> {
        let Some(done) = self.0 else { return Ok(()) };
        let ended = || Err("the thread that writes it has ended".into());
        done.await
            .unwrap_or_else(|_| ended())
            .map_err(|reason| Refusal::NotKept { reason: reason.to_string() })
    }
}

/// An attempt to make a volume. Dropped without an end, its end is not known.
#[derive(Debug)]
pub(super) struct OpenAttempt {
    keeper: Arc<Keeper>,
    request: VolumeRequest,
    attempt: Attempt,
    open: bool,
}

impl OpenAttempt {
    /// Where it goes.
    pub(super) fn node(&self) -> &NodeId {
        self.attempt.node()
    }

    /// Takes in how it ended, and waits until that is on the disk.
    pub(super) async fn end(mut self, end: End<'_>) -> Result<(), Refusal> {
        let written = self.close(end)?;
        written.done().await
    }

    fn close(&mut self, end: End<'_>) -> Result<Written, Refusal> {
        self.open = false;
        let (request, attempt) = (&self.request, &self.attempt);
        let mut ledger = self.keeper.ledger();
        let step = ledger.handle(Event::Ended { request, attempt, end })?;
        Ok(self.keeper.write(step.changes))
    }
}

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        if self.open {
            // An uncertain end changes nothing on the disk.
            let _ = self.close(End::Uncertain);
        }
    }
}

struct Writer {
    journal: Box<dyn Journal>,
    state: Arc<State>,
    /// What is not certain to be on the disk, by row.
    backlog: BTreeMap<u64, Change>,
}

impl Writer {
    fn run(mut self, batches: &mpsc::Receiver<Batch>) {
        while let Ok(first) = batches.recv() {
            let mut group = vec![first];
            group.extend(batches.try_iter().take(GROUP - 1));
            for change in group.iter_mut().flat_map(|batch| std::mem::take(&mut batch.changes)) {
                let (Change::Put(row, _) | Change::Remove(row) | Change::SetAside(row)) = &change;
                self.backlog.insert(*row, change);
            }
            let outcome = self.commit();
            self.tell(&outcome);
            let outcome: Done = outcome.map_err(|error| error.to_string().into());
            for batch in group {
                self.state.waiting.fetch_sub(1, Ordering::AcqRel);
                // It has left; what it wanted is done all the same.
                let _ = batch.done.send(outcome.clone());
            }
        }
    }

    fn commit(&mut self) -> Result<(), JournalError> {
        if self.state.failed.load(Ordering::Acquire) {
            self.journal.reopen()?;
        }
        if !self.backlog.is_empty() {
            let changes: Vec<_> = self.backlog.values().cloned().collect();
            self.journal.commit(&changes)?;
        }
        self.backlog.clear();
        Ok(())
    }

    fn tell(&self, outcome: &Result<(), JournalError>) {
        let failed_before = self.state.failed.swap(outcome.is_err(), Ordering::AcqRel);
        match outcome {
            Err(error) if !failed_before => tracing::error!(
                %error,
                "the table of placements cannot be written; no volume is made until it can"
            ),
            Ok(()) if failed_before => tracing::info!("the table of placements can be written again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
