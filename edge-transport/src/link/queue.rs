//! A listener that other code feeds with connections, such as an HTTP server that upgrades requests to websockets.

use tokio::sync::mpsc;

use super::{Incoming, LinkError, LinkKind, Listener};

/// Accepts the connections that [`LinkSender`]s pass to it.
#[derive(Debug)]
pub(super) struct LinkQueue {
    connections: mpsc::Receiver<Incoming>,
    kind: LinkKind,
    address: String,
}

/// Passes connections to the listener that [`queue`] creates with it. Cheap to clone.
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
pub fn queue(kind: LinkKind, address: impl Into<String>, bound: usize) -> (LinkSender, Box<dyn Listener>) {
    let (sender, connections) = mpsc::channel(bound.max(1));
    let listener = LinkQueue { connections, kind, address: address.into() };
    (LinkSender { connections: sender }, Box::new(listener))
}

impl LinkSender {
    /// Passes a connection on, without waiting. The handshake has not started: the hub runs it, or drops it to refuse the
    /// connection.
    ///
    /// # Errors
    /// [`LinkError::QueueFull`] or [`LinkError::QueueClosed`]; the connection is dropped.
    pub fn offer(&self, incoming: Incoming) -> Result<(), LinkError> {
        self.connections.try_send(incoming).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                LinkError::QueueFull { max: self.connections.max_capacity() }
            }
            mpsc::error::TrySendError::Closed(_) => LinkError::QueueClosed,
        })
    }

    /// Passes a connection on, and waits while the queue is full. Dropping the future drops the connection.
    ///
    /// # Errors
    /// [`LinkError::QueueClosed`]; the connection is dropped.
    pub async fn send(&self, incoming: Incoming) -> Result<(), LinkError> {
        self.connections.send(incoming).await.map_err(|_| LinkError::QueueClosed)
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
        assert!(matches!(sender.offer(connection()), Err(LinkError::QueueFull { max: 2 })));
        listener.accept().await.unwrap();
        sender.offer(connection()).unwrap();
        drop(listener);
        assert!(matches!(sender.offer(connection()), Err(LinkError::QueueClosed)));
    }
}
