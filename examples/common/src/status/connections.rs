//! The open connections of the status server. A new one is always accepted, so that no number of idle clients delays the
//! liveness probe of kubelet, which would restart the process.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
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
    source: IpAddr,
    task: AbortHandle,
    /// Whether the client has sent a request.
    asked: Arc<AtomicBool>,
}

impl Connections {
    /// Starts a connection, which sets its flag once the client has sent a request. If too many are open, one of the
    /// address with most of them ends: the oldest one without a request, or else the oldest one. A client that connects
    /// again and again thereby replaces its own connections.
    pub(super) async fn add<F>(&mut self, address: IpAddr, start: impl FnOnce(Arc<AtomicBool>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let asked = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(start(Arc::clone(&asked))).abort_handle();
        self.0.push_back(Connection { source: source(address), task, asked });
        // Lets the open connections read what has arrived, before one of them counts as silent.
        tokio::task::yield_now().await;
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() > MAX_CONNECTIONS
            && let Some(ended) = self.superfluous().and_then(|at| self.0.remove(at))
        {
            ended.task.abort();
        }
    }

    /// The connection that ends first.
    fn superfluous(&self) -> Option<usize> {
        let of_source = |source| self.0.iter().filter(|other| other.source == source).count();
        let rank = |(at, connection): (usize, &Connection)| {
            let silent = !connection.asked.load(Ordering::Relaxed);
            ((of_source(connection.source), silent, Reverse(at)), at)
        };
        self.0.iter().enumerate().map(rank).max().map(|(_, at)| at)
    }
}

/// An IPv4 address, or the first 64 bits of an IPv6 address, since a host has all addresses of such a network. Not a
/// larger network: in a cluster the pods of a node share it with kubelet.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}
