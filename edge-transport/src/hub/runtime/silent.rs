//! Links that have not sent their first byte. They hold no handshake slot, and the oldest one of the source with the most
//! makes room for a newcomer.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::source_usage::SourceUsage;
use crate::link::{Incoming, Source};

/// Maximum number of silent links of a listener. Each needs a socket and about 1 KiB.
const MAX_SILENT: usize = 1024;

/// Timeout of the first byte. Peers send it with the handshake's first packet, one round trip after the
/// connection's first: 2 s also suffice on a link that loses that packet once.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);

/// The silent links of one listener.
#[derive(Debug, Clone)]
pub(super) struct SilentLinks(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    next: u64,
    /// The links in order of arrival. Dropping the sender evicts the link.
    links: BTreeMap<u64, (Source, oneshot::Sender<()>)>,
    usage: SourceUsage,
}

impl Table {
    fn remove(&mut self, number: u64) {
        if let Some((source, _)) = self.links.remove(&number) {
            self.usage.remove(source);
        }
    }
}

impl SilentLinks {
    pub(super) fn new() -> Self {
        let usage = SourceUsage::new(MAX_SILENT);
        Self(Arc::new(Mutex::new(Table { next: 0, links: BTreeMap::new(), usage })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a link. If the table is full, evicts the oldest of the source with the most: one source evicts its own links, and
    /// with many sources a real peer sends its first byte long before the table is full of newer links.
    pub(super) fn add(&self, source: Source) -> SilentLink {
        let (sender, evicted) = oneshot::channel();
        let mut table = self.table();
        let (number, most) = (table.next, table.usage.most());
        let is_of_largest = |(_, (source, _)): &(&u64, &(Source, _))| table.usage.of(*source) == most;
        if table.usage.is_full()
            && let Some(oldest) = table.links.iter().find(is_of_largest).map(|(number, _)| *number)
        {
            table.remove(oldest);
        }
        table.next += 1;
        table.usage.add(source);
        table.links.insert(number, (source, sender));
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
        self.links.table().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    /// Any number of silent links of one source evict links of that source only.
    #[test]
    fn source_evicts_its_own_links() {
        let (silent, hostile) = (SilentLinks::new(), Source::User { uid: 1 });
        let mut links: Vec<_> = (0..MAX_SILENT - 2).map(|_| silent.add(hostile)).collect();
        let mut genuine = [silent.add(Source::User { uid: 2 }), silent.add(Source::Unknown)];
        links.extend((0..2 * MAX_SILENT).map(|_| silent.add(hostile)));
        assert!(genuine.iter_mut().all(|link| link.evicted.try_recv() == Err(TryRecvError::Empty)));
        let is_evicted = |link: &mut SilentLink| link.evicted.try_recv() == Err(TryRecvError::Closed);
        let kept = links.iter_mut().position(|link| !is_evicted(link)).unwrap();
        assert_eq!(kept, 2 * MAX_SILENT, "the oldest are evicted");
        drop((links, genuine));
        assert!(silent.table().usage.is_unused() && silent.table().links.is_empty());
    }
}
