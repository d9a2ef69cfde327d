//! Captures the log of one thread.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Level};

/// With a single subscriber the first thread at a log line decides for all threads whether it is enabled, and another
/// test has no subscriber. Therefore a second one always exists.
static ANOTHER: OnceLock<Dispatch> = OnceLock::new();

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the log of this thread, which runs the whole test, until the guard is dropped.
    pub(crate) fn start(level: Level) -> (Self, DefaultGuard) {
        ANOTHER.get_or_init(|| {
            let wants_all = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(io::sink);
            Dispatch::new(wants_all.finish())
        });
        let log = Self::default();
        let to = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || to.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
