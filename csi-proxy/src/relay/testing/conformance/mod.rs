//! Conformance tests of the [`Relay`] contract, for a custom relay.
//!
//! ```
//! use csi_proxy::{FaultyRelay, conformance};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), conformance::Violation> {
//! // `far` replaces the dispatcher on the node: connect the far side of your relay to it, and return its near side.
//! conformance::check(async |far| FaultyRelay::new(far, [])).await
//! # }
//! ```
//!
//! The suite needs the methods of the Controller and SnapshotMetadata services. It finds a relay that changes, loses or
//! repeats any part of a call or an answer; keeps the body of an ended call; passes a stream on only at its end; mixes
//! concurrent calls; or ends the work with the wait. [`Check::with_faults`] cuts the bus too. A relay that cannot carry
//! streams is checked with [`Check::unary_only`].
//!
//! Not checked: that the bus carries calls and messages of the largest size, that a slow reader of a stream stops its sender,
//! and that work whose caller has left is cancelled, which the contract leaves to the bus.

mod cases;
mod far_end;
mod faults;
mod suite;

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use self::far_end::FarEnd;
use self::suite::Suite;
use crate::relay::Relay;

/// The node of all calls of the suite.
pub const NODE: &str = "conformance-node";

/// A violation of the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{case}: {found}")]
#[non_exhaustive]
pub struct Violation {
    /// The rule of the contract that is broken.
    pub case: &'static str,
    /// The outcome or messages that break the rule.
    pub found: String,
}

type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
type Connect<'a> = Box<dyn FnOnce(Arc<dyn Relay>) -> Local<'a, Arc<dyn Relay>> + 'a>;
type Cut<'a> = Box<dyn Fn() -> Local<'a, ()> + 'a>;

/// Every case against one relay; await it for the first broken rule. `connect` is called once: it receives the far end
/// and returns a relay to it.
pub fn check<'a, R: Relay + 'static>(connect: impl AsyncFnOnce(Arc<dyn Relay>) -> R + 'a) -> Check<'a> {
    let connect: Connect<'a> = Box::new(move |far| {
        Box::pin(async move {
            let relay: Arc<dyn Relay> = Arc::new(connect(far).await);
            relay
        })
    });
    Check { connect, unary_only: false, cut: None }
}

/// The cases to run against a relay.
#[must_use = "await it to run the cases"]
pub struct Check<'a> {
    connect: Connect<'a>,
    unary_only: bool,
    cut: Option<Cut<'a>>,
}

impl<'a> Check<'a> {
    /// Leaves the cases of streams out: instead, the relay must refuse a stream with a fault.
    pub fn unary_only(mut self) -> Self {
        self.unary_only = true;
        self
    }

    /// Runs the cases of a lost bus too. `cut` loses what is under way, for example by a restart of the broker, and
    /// returns when the bus is there again or about to be: the suite waits up to 30 s for it.
    pub fn with_faults(mut self, cut: impl AsyncFn() + 'a) -> Self {
        let cut = Rc::new(cut);
        self.cut = Some(Box::new(move || {
            let cut = Rc::clone(&cut);
            Box::pin(async move { cut().await })
        }));
        self
    }

    async fn run(self) -> Result<(), Violation> {
        let far = Arc::new(FarEnd::default());
        let relay = (self.connect)(Arc::clone(&far) as Arc<dyn Relay>).await;
        let suite = Suite { relay, far };
        cases::unary(&suite).await?;
        match self.unary_only {
            true => cases::stream_is_refused(&suite).await?,
            false => cases::streams(&suite).await?,
        }
        cases::calls_arrive_once(&suite)?;
        match &self.cut {
            Some(cut) => faults::run(&suite, cut, self.unary_only).await,
            None => Ok(()),
        }
    }
}

impl<'a> IntoFuture for Check<'a> {
    type Output = Result<(), Violation>;
    type IntoFuture = Local<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("unary_only", &self.unary_only)
            .field("with_faults", &self.cut.is_some())
            .finish_non_exhaustive()
    }
}
