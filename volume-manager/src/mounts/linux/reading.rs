//! Reading the table for many who ask, with a deadline; and being told that it has changed.

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

/// One reads at a time, whatever happens: a read that hangs costs one thread, and who waits for it waits no longer than the
/// deadline.
pub(super) struct Reading {
    read: Arc<dyn Fn() -> Read + Send + Sync>,
    deadline: Duration,
    /// How many reads were begun.
    begun: AtomicU64,
    flight: Mutex<Flight>,
}

#[derive(Default)]
struct Flight {
    /// A read that was begun, and that nobody has seen the end of.
    running: Option<JoinHandle<Read>>,
    /// The last table, and which read it is of.
    last: Option<(u64, Arc<MountTable>)>,
}

impl Reading {
    pub(super) fn new(deadline: Duration, read: impl Fn() -> Read + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), deadline, begun: AtomicU64::new(0), flight: Mutex::default() }
    }

    /// The table, at least as new as the call.
    pub(super) async fn table(&self) -> Read {
        let before = self.begun.load(Ordering::SeqCst);
        let late = TableError::Late { waited: self.deadline };
        timeout(self.deadline, self.begun_after(before)).await.unwrap_or(Err(late))
    }

    /// A table of a read that was begun later than the first `before` ones.
    async fn begun_after(&self, before: u64) -> Read {
        let mut flight = self.flight.lock().await;
        if let Some((number, table)) = &flight.last
            && *number > before
        {
            return Ok(Arc::clone(table));
        }
        // One that somebody has given up waiting for. It may be older than this call, so its answer is of no use.
        if let Some(left) = &mut flight.running {
            let _ = left.await;
            flight.running = None;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let read = Arc::clone(&self.read);
        let running = flight.running.insert(tokio::task::spawn_blocking(move || read()));
        let read = running.await;
        flight.running = None;
        let table = read.unwrap_or_else(|error| Err(TableError::Read(io::Error::other(error))))?;
        flight.last = Some((number, Arc::clone(&table)));
        Ok(table)
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("deadline", &self.deadline).field("begun", &self.begun).finish()
    }
}

/// The kernel marks the open file as urgent at each change, until it was asked.
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

    /// A reading that waits for a word each time, and who says it.
    fn told(deadline: Duration) -> (Reading, mpsc::Sender<()>) {
        let (word, words) = mpsc::channel();
        let words = Lock::new(words);
        let read = move || {
            let _ = words.lock().unwrap_or_else(PoisonError::into_inner).recv();
            Ok(Arc::default())
        };
        (Reading::new(deadline, read), word)
    }

    #[tokio::test]
    async fn a_read_that_hangs_costs_one_thread_and_nobody_waits_for_ever() {
        let (reading, word) = told(Duration::from_millis(30));
        for _ in 0..5 {
            assert!(matches!(reading.table().await, Err(TableError::Late { .. })));
        }
        assert_eq!(reading.begun.load(Ordering::SeqCst), 1);
        drop(word);
        while reading.table().await.is_err() {}
        assert_eq!(
            reading.begun.load(Ordering::SeqCst),
            2,
            "what was begun before the call does not answer it"
        );
    }

    #[tokio::test]
    async fn who_asks_while_another_reads_shares_the_next_read() {
        let (reading, word) = told(Duration::from_secs(60));
        let feed = async {
            word.send(()).unwrap();
            word.send(()).unwrap();
        };
        let (first, second, third, fourth, ()) =
            tokio::join!(biased; reading.table(), reading.table(), reading.table(), reading.table(), feed);
        assert!(first.is_ok() && second.is_ok() && third.is_ok() && fourth.is_ok());
        assert_eq!(reading.begun.load(Ordering::SeqCst), 2);
    }
}
