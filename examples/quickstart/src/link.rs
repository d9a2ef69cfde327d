//! The link between the agent and the hub, which the quickstart can cut.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::{Dialer, Link, LinkError};

/// A dialer that can cut its last link. Clones share the link.
#[derive(Clone)]
pub(super) struct CuttableLink {
    dialer: Arc<dyn Dialer>,
    link: Arc<Mutex<Option<Handle>>>,
}

impl CuttableLink {
    pub(super) fn new(dialer: Box<dyn Dialer>) -> Self {
        Self { dialer: dialer.into(), link: Arc::default() }
    }

    fn link(&self) -> MutexGuard<'_, Option<Handle>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the current link. The agent may reconnect at once.
    pub(super) fn cut(&self) {
        if let Some(link) = self.link().take() {
            link.cut(Direction::Both);
        }
    }
}

#[async_trait]
impl Dialer for CuttableLink {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (link, handle) = faulty::wrap(self.dialer.dial().await?, Plan::default());
        *self.link() = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        self.dialer.address()
    }
}
