//! Tells a service what became of its answer.

use std::fmt;

use crate::session::Delivery;

type Tell = Box<dyn FnOnce(Delivery) + Send + Sync>;

/// Told once. Dropped untold, it tells that the answer was not delivered: the peer has stopped.
pub(super) struct Receipt(Option<Tell>);

impl Receipt {
    pub(super) fn new(tell: impl FnOnce(Delivery) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    pub(super) fn tell(mut self, delivery: Delivery) {
        self.told(delivery);
    }

    fn told(&mut self, delivery: Delivery) {
        if let Some(tell) = self.0.take() {
            tell(delivery);
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.told(Delivery::Undelivered);
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt")
    }
}
