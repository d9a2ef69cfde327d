//! Links that a test can cut.

use std::sync::{Arc, Mutex};

use edge_transport::link::faulty::{self, Handle, Plan};
use edge_transport::link::{Dialer, Link, LinkError};

/// Dials memory links. Clones share the last link.
#[derive(Clone)]
pub(crate) struct Cuttable {
    inner: Arc<dyn Dialer>,
    last: Arc<Mutex<Option<Handle>>>,
}

impl Cuttable {
    pub(crate) fn new(inner: Arc<dyn Dialer>) -> Self {
        Self { inner, last: Arc::default() }
    }

    /// Cuts the last link.
    pub(crate) fn cut(&self) {
        let last = self.last.lock().unwrap();
        let handle = last.as_ref().unwrap();
        handle.cut(faulty::Direction::Both);
    }

    /// Holds back what this end sends over the last link.
    pub(crate) fn stall(&self) {
        self.last.lock().unwrap().as_ref().unwrap().stall(faulty::Direction::Sending);
    }

    pub(crate) fn heal(&self) {
        self.last.lock().unwrap().as_ref().unwrap().heal();
    }
}

#[async_trait::async_trait]
impl Dialer for Cuttable {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (link, handle) = faulty::wrap(self.inner.dial().await?, Plan::new(1));
        *self.last.lock().unwrap() = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        "cuttable"
    }
}
