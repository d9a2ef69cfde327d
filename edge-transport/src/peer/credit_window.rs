//! Flow control: a service waits while its call has no credit, and the messages that wait have limited memory.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::Cancelled;
use crate::fair_share::FairShare;
use crate::name::PeerId;

/// The bytes of all messages of a peer that wait for the credit of their callers, divided fairly among the callers.
#[derive(Debug, Clone)]
pub(super) struct UnreadBytes(Arc<Mutex<FairShare<PeerId>>>);

impl UnreadBytes {
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(max))))
    }

    /// Counts a message for this caller until the result is dropped. `None` if the caller, with all names below its own,
    /// has too many; one message may exceed the limit.
    pub(super) fn count(&self, caller: &PeerId, bytes: usize) -> Option<CountedBytes> {
        let owner = caller.top();
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.used() > 0 && !shared.has_room(&owner, bytes) {
            return None;
        }
        shared.take(&owner, bytes);
        Some(CountedBytes { all: self.clone(), owner, bytes })
    }
}

/// The bytes of a message that waits; the drop ends the count.
#[derive(Debug)]
pub(super) struct CountedBytes {
    all: UnreadBytes,
    owner: PeerId,
    bytes: usize,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let mut shared = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.give_back(&self.owner, self.bytes);
    }
}

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
