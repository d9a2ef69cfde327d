//! The listener of a simulated hub.

use edge_transport::PeerId;
use edge_transport::link::{Incoming, Link, LinkError, LinkKind, Listener, Protection, faulty, memory};
use tokio::sync::mpsc;

use super::MAX_FRAME;
use crate::plan::Hostile;

/// Creates a hub's listener and its dialler. Frames that the hub writes can be held back and corrupted.
pub(crate) fn listen(address: String) -> (Gate, Door) {
    let (door, links) = mpsc::channel(BACKLOG);
    (Gate { links, address }, Door(door))
}

/// Largest number of links that wait for the hub to accept them.
const BACKLOG: usize = 64;

/// The hub's listener.
pub(crate) struct Gate {
    links: mpsc::Receiver<Link>,
    address: String,
}

#[async_trait::async_trait]
impl Listener for Gate {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        match self.links.recv().await {
            Some(link) => Ok(Incoming::new(std::future::ready(Ok(link)))),
            None => std::future::pending().await,
        }
    }

    fn kind(&self) -> LinkKind {
        LinkKind::MEMORY
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}

/// The dialler's side of a hub's listener.
#[derive(Debug, Clone)]
pub(crate) struct Door(mpsc::Sender<Link>);

impl Door {
    /// Dials the hub with credentials for this name.
    pub(super) async fn dial(
        &self,
        name: PeerId,
        hostile: Hostile,
        seed: u64,
    ) -> Result<(Link, faulty::Handle), LinkError> {
        let (far, hubs) = memory::pair(MAX_FRAME);
        let Hostile { duplicated, lost, corrupted } = hostile;
        let faults =
            faulty::Faults::default().with_duplicate(duplicated).with_drop(lost).with_corrupt(corrupted);
        let plan = faulty::Plan::new(seed).with_sending(faults).with_receiving(faults);
        let (hubs, brake) = faulty::wrap(hubs, plan);
        self.0.send(proven(hubs, name)).await.map_err(|_| LinkError::Lost)?;
        Ok((far, brake))
    }

    /// Dials the hub with credentials for this name, without a network between. The dialling end may send frames of any
    /// size.
    pub(crate) async fn connect(&self, name: PeerId) -> Result<Link, LinkError> {
        let (near, hubs) = memory::pair(4 * MAX_FRAME);
        self.0.send(proven(hubs, name)).await.map_err(|_| LinkError::Lost)?;
        Ok(near)
    }
}

/// Returns the hub's end of a link whose other end has proven a name.
fn proven(link: Link, name: PeerId) -> Link {
    Link::new(link, LinkKind::MEMORY, name.to_string(), name.into()).with_protection(Protection::Private)
}
