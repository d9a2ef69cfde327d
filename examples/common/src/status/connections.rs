//! The open connections of the status server. A new one is always accepted, so that no number of idle clients delays the
//! liveness probe of kubelet, which would restart the process.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// The maximum number of open connections.
const MAX_CONNECTIONS: usize = 64;

/// The open connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(VecDeque<Connection>);

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    /// Whether the client has sent a request.
    asked: Arc<AtomicBool>,
}

impl Connections {
    /// Starts a connection, which sets its flag once the client has sent a request. If too many are open, the oldest one
    /// without a request ends, or else the oldest one.
    pub(super) async fn add<F>(&mut self, start: impl FnOnce(Arc<AtomicBool>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let asked = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(start(Arc::clone(&asked))).abort_handle();
        self.0.push_back(Connection { task, asked });
        // Lets the open connections read what has arrived, before one of them counts as silent.
        tokio::task::yield_now().await;
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() > MAX_CONNECTIONS {
            let silent = self.0.iter().position(|connection| !connection.asked.load(Ordering::Relaxed));
            if let Some(oldest) = self.0.remove(silent.unwrap_or_default()) {
                oldest.task.abort();
            }
        }
    }
}
