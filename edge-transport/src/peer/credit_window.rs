//! Flow control: a service waits while its call has no credit.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::Cancelled;

/// The credit of one call, shared by its [`super::ReplySender`], which spends, and the session, which grants.
#[derive(Debug)]
pub(super) struct CreditWindow {
    balance: AtomicI64,
    closed: AtomicBool,
    waker: AtomicWaker,
}

impl CreditWindow {
    pub(super) fn new(credit: u64) -> Self {
        let balance = AtomicI64::new(i64::try_from(credit).unwrap_or(i64::MAX));
        Self { balance, closed: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    pub(super) fn grant(&self, bytes: u64) {
        let add = |balance: i64| Some(balance.saturating_add_unsigned(bytes));
        // The closure always returns a value, so the update cannot fail.
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

    /// Ready once the call is cancelled.
    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_closed() {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        // The window may have been closed between the check and the registration.
        if self.is_closed() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn try_spend(&self, cost: u64) -> Option<Result<(), Cancelled>> {
        if self.is_closed() {
            return Some(Err(Cancelled));
        }
        let spend = |balance: i64| (balance > 0).then(|| balance.saturating_sub_unsigned(cost));
        self.balance.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend).ok().map(|_| Ok(()))
    }

    /// Ready after the cost was subtracted from a balance above zero.
    pub(super) fn poll_spend(&self, cost: u64, cx: &Context<'_>) -> Poll<Result<(), Cancelled>> {
        if let Some(spent) = self.try_spend(cost) {
            return Poll::Ready(spent);
        }
        self.waker.register(cx.waker());
        // Credit may have arrived between the check and the registration.
        self.try_spend(cost).map_or(Poll::Pending, Poll::Ready)
    }
}
