//! A shared reader of the mount table with a timeout, and notifications of changes.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::{MountChanges, MountTable, TableError};

type Read = Result<Arc<MountTable>, TableError>;

/// Shares reads of the table (single-flight): at most one read runs at a time, so a read that hangs costs one thread, and
/// callers wait no longer than the deadline.
pub(super) struct SharedReader {
    read: Arc<dyn Fn() -> Read + Send + Sync>,
    deadline: Duration,
    /// The number of reads started.
    started: AtomicU64,
    flight: Mutex<Flight>,
}

#[derive(Default)]
struct Flight {
    /// The read that is running, possibly abandoned by its caller.
    running: Option<JoinHandle<Read>>,
    /// The number and result of the last read.
    last: Option<(u64, Arc<MountTable>)>,
}

impl SharedReader {
    pub(super) fn new(deadline: Duration, read: impl Fn() -> Read + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), deadline, started: AtomicU64::new(0), flight: Mutex::default() }
    }

    /// Returns the table, no older than the call.
    pub(super) async fn table(&self) -> Read {
        let before = self.started.load(Ordering::SeqCst);
        let error = TableError::Timeout { waited: self.deadline };
        timeout(self.deadline, self.read_after(before)).await.unwrap_or(Err(error))
    }

    /// Returns the table of a read that was started after the first `before` reads.
    async fn read_after(&self, before: u64) -> Read {
        let mut flight = self.flight.lock().await;
        if let Some((number, table)) = &flight.last
            && *number > before
        {
            return Ok(Arc::clone(table));
        }
        // An abandoned read may have started before this call, so its result is discarded.
        if let Some(left) = &mut flight.running {
            let _ = left.await;
            flight.running = None;
        }
        let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
        let read = Arc::clone(&self.read);
        let running = flight.running.insert(tokio::task::spawn_blocking(move || read()));
        let read = running.await;
        flight.running = None;
        let table = read.unwrap_or_else(|error| Err(TableError::Read(io::Error::other(error))))?;
        flight.last = Some((number, Arc::clone(&table)));
        Ok(table)
    }
}

impl fmt::Debug for SharedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReader")
            .field("deadline", &self.deadline)
            .field("started", &self.started)
            .finish()
    }
}

/// Notifications of changes: the kernel signals `POLLPRI` on the open file at each change.
#[derive(Debug)]
pub(super) struct Changes(AsyncFd<File>);

impl Changes {
    #[allow(deprecated, reason = "sound for a file, which owns its descriptor; what replaces it is unsafe")]
    pub(super) fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/mountinfo")?;
        Ok(Self(AsyncFd::with_interest(file, Interest::PRIORITY)?))
    }
}

#[async_trait]
impl MountChanges for Changes {
    async fn changed(&mut self) -> io::Result<()> {
        self.0.ready(Interest::PRIORITY).await?.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::sync::{Mutex as Lock, PoisonError};

    use super::*;

    /// A reader whose reads each wait for a message, and the sender of the messages.
    fn gated(deadline: Duration) -> (SharedReader, mpsc::Sender<()>) {
        let (gate, messages) = mpsc::channel();
        let messages = Lock::new(messages);
        let read = move || {
            let _ = messages.lock().unwrap_or_else(PoisonError::into_inner).recv();
            Ok(Arc::default())
        };
        (SharedReader::new(deadline, read), gate)
    }

    #[tokio::test]
    async fn hanging_read_costs_one_thread_and_times_out() {
        let (reader, gate) = gated(Duration::from_millis(30));
        for _ in 0..5 {
            assert!(matches!(reader.table().await, Err(TableError::Timeout { .. })));
        }
        assert_eq!(reader.started.load(Ordering::SeqCst), 1);
        drop(gate);
        while reader.table().await.is_err() {}
        assert_eq!(reader.started.load(Ordering::SeqCst), 2, "a read from before the call is not used");
    }

    #[tokio::test]
    async fn callers_during_a_read_share_the_next_one() {
        let (reader, gate) = gated(Duration::from_secs(60));
        let feed = async {
            gate.send(()).unwrap();
            gate.send(()).unwrap();
        };
        let (first, second, third, fourth, ()) =
            tokio::join!(biased; reader.table(), reader.table(), reader.table(), reader.table(), feed);
        assert!(first.is_ok() && second.is_ok() && third.is_ok() && fourth.is_ok());
        assert_eq!(reader.started.load(Ordering::SeqCst), 2);
    }
}
