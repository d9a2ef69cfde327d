//! Holds a service back while its call has no credit.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::CallerGone;

/// Shared by one [`super::ReplySender`], which waits, and the session, which gives.
#[derive(Debug)]
pub(super) struct Gate {
    balance: AtomicI64,
    closed: AtomicBool,
    waker: AtomicWaker,
}

impl Gate {
    pub(super) fn new(credit: u64) -> Self {
        let balance = AtomicI64::new(i64::try_from(credit).unwrap_or(i64::MAX));
        Self { balance, closed: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    pub(super) fn give(&self, bytes: u64) {
        let add = |balance: i64| Some(balance.saturating_add_unsigned(bytes));
        // The closure always gives a value, so there is no failure to look at.
        let _ = self.balance.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        self.waker.wake();
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ready once nobody waits any more.
    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_closed() {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        // It may have been closed between the look and the registration.
        if self.is_closed() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn try_spend(&self, cost: u64) -> Option<Result<(), CallerGone>> {
        if self.is_closed() {
            return Some(Err(CallerGone));
        }
        let spend = |balance: i64| (balance > 0).then(|| balance.saturating_sub_unsigned(cost));
        self.balance.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend).ok().map(|_| Ok(()))
    }

    /// Ready when the balance was above zero; then the cost has been taken from it.
    pub(super) fn poll_spend(&self, cost: u64, cx: &Context<'_>) -> Poll<Result<(), CallerGone>> {
        if let Some(spent) = self.try_spend(cost) {
            return Poll::Ready(spent);
        }
        self.waker.register(cx.waker());
        // Credit may have come between the look and the registration.
        self.try_spend(cost).map_or(Poll::Pending, Poll::Ready)
    }
}
