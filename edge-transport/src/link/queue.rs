//! A listener that other code feeds with connections, such as an HTTP server that upgrades requests to websockets.

use tokio::sync::mpsc;

use super::{Incoming, LinkError, LinkKind, Listener};

/// Why a [`LinkQueue`] does not take a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue is full.
    #[error(
        "{max} connections wait for the hub already: refuse this one, so that its peer tries again later"
    )]
    Full {
        /// The bound of the queue.
        max: usize,
    },
    /// The hub accepts no more links.
    #[error("the hub accepts no more links: it was drained or closed")]
    Closed,
}

/// Accepts the connections that [`LinkSender`]s pass to it; created by [`queue`].
#[derive(Debug)]
pub struct LinkQueue {
    connections: mpsc::Receiver<Incoming>,
    kind: LinkKind,
    address: String,
}

/// Passes connections to a [`LinkQueue`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LinkSender {
    connections: mpsc::Sender<Incoming>,
}

/// Creates a listener for links of this kind, and the sender of its connections. At most `bound` of them (at least one) wait to
/// be accepted. The address is for logs.
///
/// The hub applies the limits of any other listener: an [`Incoming`] whose source is set gets a share of the handshake slots,
/// its handshake has the hub's timeout, and its link is limited until its peer is admitted.
#[must_use]
pub fn queue(kind: LinkKind, address: impl Into<String>, bound: usize) -> (LinkSender, LinkQueue) {
    let (sender, connections) = mpsc::channel(bound.max(1));
    (LinkSender { connections: sender }, LinkQueue { connections, kind, address: address.into() })
}

impl LinkSender {
    /// Passes a connection on, without waiting. The handshake has not started: the hub runs it, or drops it to refuse the
    /// connection.
    ///
    /// # Errors
    /// [`QueueError`]; the connection is dropped.
    pub fn offer(&self, incoming: Incoming) -> Result<(), QueueError> {
        self.connections.try_send(incoming).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => QueueError::Full { max: self.connections.max_capacity() },
            mpsc::error::TrySendError::Closed(_) => QueueError::Closed,
        })
    }

    /// Passes a connection on, and waits while the queue is full. Dropping the future drops the connection.
    ///
    /// # Errors
    /// [`QueueError::Closed`]; the connection is dropped.
    pub async fn send(&self, incoming: Incoming) -> Result<(), QueueError> {
        self.connections.send(incoming).await.map_err(|_| QueueError::Closed)
    }
}

#[async_trait::async_trait]
impl Listener for LinkQueue {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        match self.connections.recv().await {
            Some(incoming) => Ok(incoming),
            // Without a sender no connection can arrive, but the listener has not failed.
            None => std::future::pending().await,
        }
    }

    fn kind(&self) -> LinkKind {
        self.kind
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full queue refuses at once and names its bound; after the hub has ended there is no queue.
    #[tokio::test]
    async fn a_full_queue_refuses_connections() {
        let connection = || Incoming::new(std::future::ready(Err(LinkError::Lost)));
        let (sender, mut listener) = queue(LinkKind::custom("test"), "test", 2);
        sender.offer(connection()).unwrap();
        sender.send(connection()).await.unwrap();
        assert_eq!(sender.offer(connection()), Err(QueueError::Full { max: 2 }));
        listener.accept().await.unwrap();
        sender.offer(connection()).unwrap();
        drop(listener);
        assert_eq!(sender.offer(connection()), Err(QueueError::Closed));
    }
}
