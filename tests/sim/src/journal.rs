//! The journals of the agents, on disks that outlive them: commits take time, fail, and are cut short by a crash.

use std::time::Duration;

use csi_proxy::operation::journal::memory::MemoryDisk;
use csi_proxy::operation::journal::{Change, Journal};

use crate::world::{Happening, PeerIndex, World};

/// How long a failed journal stays failed.
const REPAIR: Duration = Duration::from_secs(2);

/// The disk of a node.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) rows: MemoryDisk,
    /// The next commit fails; whether it was written all the same.
    pub(crate) fails: Option<bool>,
    /// The agent ends at a commit.
    pub(crate) crash: Option<CommitCrash>,
}

/// An agent ends at a commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitCrash {
    /// The commit is on the disk.
    pub(crate) written: bool,
    /// Not at the next commit, but at the next that removes a row: what was void before would be back.
    pub(crate) removal: bool,
    /// How long the agent is away.
    pub(crate) down: Duration,
}

/// What a life of an agent is writing.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The commit that is under way.
    changes: Option<Vec<Change>>,
    /// When it is looked at next.
    due: Option<Duration>,
}

impl World {
    /// Begins the next commit, if its time has come.
    pub(crate) fn journal_works(&mut self, index: PeerIndex) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        let Some(desk) = &mut peer.desk else { return };
        if let Some(batch) = desk.pending.take(peer.clock.show(now)) {
            desk.written.changes = Some(batch.changes(peer.clock.wall(now)));
            let slow = self.chance.happens(50);
            let takes = if slow { self.chance.millis(100, 900) } else { self.chance.millis(1, 12) };
            self.after(takes, Happening::Committed { peer: index });
        } else if let Some(due) = desk.pending.due().map(|due| peer.clock.when(due).max(now))
            && desk.written.changes.is_none()
            && desk.written.due.is_none_or(|arranged| due < arranged || arranged < now)
        {
            desk.written.due = Some(due);
            self.at(due, Happening::JournalDue { peer: index });
        }
    }

    pub(crate) fn journal_due(&mut self, index: PeerIndex) {
        if let Some(desk) = self.peers.get_mut(index).and_then(|peer| peer.desk.as_mut()) {
            desk.written.due = None;
        }
        self.journal_works(index);
    }

    /// A commit comes to its end.
    pub(crate) fn committed(&mut self, index: PeerIndex) {
        let (now, is_latest) =
            (self.now, self.peers.get(index).map(|peer| self.current(peer.place) == Some(index)));
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        let Some(disk) = self.disks.get_mut(peer.place) else { return };
        let changes = peer.desk.as_ref().and_then(|desk| desk.written.changes.as_ref());
        let removes =
            changes.is_some_and(|changes| changes.iter().any(|change| matches!(change, Change::Remove(_))));
        if let Some(CommitCrash { written, down, .. }) = disk.crash.take_if(|crash| removes || !crash.removal)
        {
            let place = peer.place;
            self.trace.note(now, || peer.label(), || format!("ends at a commit, written: {written}"));
            self.peer_ends_at_commit(index, false, written);
            return self.after(down, Happening::PeerStarts { place });
        }
        let label = peer.label();
        let Some(desk) = &mut peer.desk else { return };
        let Some(changes) = desk.written.changes.take() else { return };
        // The disk is the latest life's.
        let failure = if is_latest == Some(true) { disk.fails.take() } else { Some(false) };
        if failure != Some(false) {
            write(disk, &changes);
        }
        if failure.is_some() {
            self.trace.note(now, || label, || "its journal fails".into());
            let reason = "the disk has failed";
            desk.pending.failed(reason.to_owned());
            self.journal_progresses(index, Some(reason));
            return self.after(REPAIR, Happening::JournalReopens { peer: index });
        }
        desk.pending.done();
        self.trace.note(now, || label, || format!("has written {} rows", changes.len()));
        self.journal_progresses(index, None);
        self.journal_works(index);
    }

    pub(crate) fn journal_reopens(&mut self, index: PeerIndex) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        let Some(desk) = &mut peer.desk else { return };
        if desk.pending.failure().is_some() {
            let entries = desk.core.entries();
            desk.pending.reopened(peer.clock.show(now), entries);
            self.journal_works(index);
        }
    }

    /// A life ends with a commit under way, of which nothing or everything is on the disk.
    pub(crate) fn peer_ends_at_commit(&mut self, index: PeerIndex, silent: bool, written: bool) {
        let is_latest = self.peers.get(index).is_some_and(|peer| self.current(peer.place) == Some(index));
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        let changes = peer.desk.as_mut().and_then(|desk| desk.written.changes.take());
        if let (Some(disk), Some(changes)) = (self.disks.get_mut(peer.place), changes)
            && written
            && is_latest
        {
            write(disk, &changes);
        }
        self.peer_ends(index, silent);
    }
}

fn write(disk: &Disk, changes: &[Change]) {
    // A journal in memory does not fail.
    let _ = disk.rows.open().commit(changes);
}
