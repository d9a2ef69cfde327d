//! The cable between the agent and the hub, with someone who can pull it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::{Dialer, Link, LinkError};

/// Dials as another dialer does, as long as the cable is in. Clones are the same.
#[derive(Clone)]
pub(super) struct Cable {
    dialer: Arc<dyn Dialer>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    pulled: bool,
    link: Option<Handle>,
}

impl Cable {
    pub(super) fn new(dialer: Box<dyn Dialer>) -> Self {
        Self { dialer: dialer.into(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the link that stands, and lets no new one come.
    pub(super) fn pull(&self) {
        let mut state = self.state();
        state.pulled = true;
        if let Some(link) = state.link.take() {
            link.cut(Direction::Both);
        }
    }

    /// Lets links come again.
    pub(super) fn plug_in(&self) {
        self.state().pulled = false;
    }
}

#[async_trait]
impl Dialer for Cable {
    async fn dial(&self) -> Result<Link, LinkError> {
        if self.state().pulled {
            return Err(LinkError::Cut);
        }
        let (link, handle) = faulty::wrap(self.dialer.dial().await?, Plan::default());
        self.state().link = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        self.dialer.address()
    }
}
