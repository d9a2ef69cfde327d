//! The cable between the agent and the hub, with someone who can pull it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::{Dialer, Link, LinkError};

/// Dials as another dialer does, as long as the cable is in.
pub(super) struct Cable {
    dialer: Box<dyn Dialer>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pulled: bool,
    link: Option<Handle>,
}

impl Cable {
    pub(super) fn new(dialer: Box<dyn Dialer>) -> Self {
        Self { dialer, state: Mutex::new(State { pulled: false, link: None }) }
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

    async fn dial(&self) -> Result<Link, LinkError> {
        if self.state().pulled {
            return Err(LinkError::Cut);
        }
        let (link, handle) = faulty::wrap(self.dialer.dial().await?, Plan::default());
        self.state().link = Some(handle);
        Ok(link)
    }
}

impl std::fmt::Debug for Cable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cable").field("state", &self.state).finish_non_exhaustive()
    }
}

/// A peer's end of the cable.
#[derive(Debug, Clone)]
pub(super) struct CableEnd(pub(super) std::sync::Arc<Cable>);

#[async_trait]
impl Dialer for CableEnd {
    async fn dial(&self) -> Result<Link, LinkError> {
        self.0.dial().await
    }

    fn address(&self) -> &str {
        self.0.dialer.address()
    }
}
