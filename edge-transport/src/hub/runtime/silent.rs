//! Links that have not sent their first byte. They hold no handshake slot, and the oldest makes room for a
//! newcomer.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::link::Incoming;

/// Maximum number of silent links of a listener. Each needs a socket and about 1 KiB.
const MAX_SILENT: usize = 1024;

/// Timeout of the first byte. Peers send it with the handshake's first packet, one round trip after the
/// connection's first: 2 s also suffice on a link that loses that packet once.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);

/// The silent links of one listener.
#[derive(Debug, Clone, Default)]
pub(super) struct SilentLinks(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// The links in order of arrival. Dropping the sender evicts the link.
    links: BTreeMap<u64, oneshot::Sender<()>>,
}

impl SilentLinks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a link. Evicts the oldest if the table is full: a real peer sends its first byte long before the table
    /// is full of newer links.
    pub(super) fn add(&self) -> SilentLink {
        let (sender, evicted) = oneshot::channel();
        let mut table = self.table();
        if table.links.len() >= MAX_SILENT {
            table.links.pop_first();
        }
        let number = table.next;
        table.next += 1;
        table.links.insert(number, sender);
        SilentLink { number, links: self.clone(), evicted }
    }
}

/// A link in the table; dropping it removes the link.
pub(super) struct SilentLink {
    number: u64,
    links: SilentLinks,
    evicted: oneshot::Receiver<()>,
}

impl SilentLink {
    /// Waits for the first byte. Returns `false` if it does not arrive: within [`FIRST_BYTE_TIMEOUT`], before the
    /// connection is lost, or before the link is evicted.
    pub(super) async fn has_first_byte(mut self, incoming: &mut Incoming) -> bool {
        let arrival = poll_fn(|cx| incoming.poll_first_byte(cx));
        tokio::select! {
            biased;
            arrival = tokio::time::timeout(FIRST_BYTE_TIMEOUT, arrival) => matches!(arrival, Ok(Ok(()))),
            _ = &mut self.evicted => false,
        }
    }
}

impl Drop for SilentLink {
    fn drop(&mut self) {
        self.links.table().links.remove(&self.number);
    }
}
