//! Flow control: a service waits while its call has no credit or enough to send, and messages that are not sent have limited
//! memory.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use super::Cancelled;
use crate::fair_share::FairShare;
use crate::name::PeerId;

/// Bytes of a call that may be queued for the link, whatever its caller grants: as much as the usual credit. Then the next
/// message waits.
const MAX_QUEUED: u64 = 256 * 1024;

/// The bytes of messages of a peer that wait, divided fairly among the callers.
#[derive(Debug)]
pub(super) struct WaitingBytes {
    shared: Mutex<FairShare<PeerId>>,
    /// Signals that many bytes were given back, so that all that wait get a part and not each is woken for each frame.
    freed: Notify,
}

/// The messages of a peer that are not sent.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    for_credit: Arc<WaitingBytes>,
    /// Those that may not be queued yet, since the link has much to send for their caller.
    for_turn: Arc<WaitingBytes>,
    /// Those that are queued for the link.
    for_link: Arc<WaitingBytes>,
}

impl Waiting {
    /// Limits each to this many bytes.
    pub(super) fn new(max: usize) -> Self {
        let bytes =
            || Arc::new(WaitingBytes { shared: Mutex::new(FairShare::new(max)), freed: Notify::new() });
        Self { for_credit: bytes(), for_turn: bytes(), for_link: bytes() }
    }

    /// Counts a message that waits for the credit of this caller, given without names below its own, until the result is
    /// dropped. `None` if the caller has too many; one message may exceed the limit.
    pub(super) fn for_credit(&self, owner: &PeerId, bytes: usize) -> Option<CountedBytes> {
        WaitingBytes::count(&self.for_credit, owner, bytes, |shared| shared.used() == 0)
    }

    /// Counts a message that may not be queued yet, as [`for_credit`](Self::for_credit) does.
    pub(super) fn for_turn(&self, owner: &PeerId, bytes: usize) -> Option<CountedBytes> {
        WaitingBytes::count(&self.for_turn, owner, bytes, |shared| shared.used() == 0)
    }

    /// Counts a message for this caller that is to be queued for the link, until the result is dropped. `None` while the caller
    /// has too many; one message is always allowed.
    pub(super) fn try_for_link(&self, owner: &PeerId, bytes: usize) -> Option<CountedBytes> {
        WaitingBytes::count(&self.for_link, owner, bytes, |shared| shared.held_by(owner) == 0)
    }

    /// [`Waiting::try_for_link`], and waits while the caller has too many. Cancel safe.
    pub(super) async fn for_link(&self, owner: &PeerId, bytes: usize) -> CountedBytes {
        loop {
            let mut freed = pin!(self.for_link.freed.notified());
            // Before the check, so that no signal is missed.
            freed.as_mut().enable();
            if let Some(counted) = self.try_for_link(owner, bytes) {
                return counted;
            }
            freed.await;
        }
    }
}

impl WaitingBytes {
    fn count(
        this: &Arc<Self>,
        owner: &PeerId,
        bytes: usize,
        is_exempt: impl Fn(&FairShare<PeerId>) -> bool,
    ) -> Option<CountedBytes> {
        let mut shared = this.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_exempt(&shared) && !shared.has_room(owner, bytes) {
            return None;
        }
        shared.take(owner, bytes);
        Some(CountedBytes { all: Arc::clone(this), owner: owner.clone(), bytes })
    }
}

/// The bytes of a message that is not sent; the drop ends the count.
#[derive(Debug)]
pub(super) struct CountedBytes {
    all: Arc<WaitingBytes>,
    owner: PeerId,
    bytes: usize,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let mut shared = self.all.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.give_back(&self.owner, self.bytes);
        if shared.used() <= shared.max() / 4 {
            self.all.freed.notify_waiters();
        }
    }
}

/// The credit of one call, shared by its [`super::ReplySender`], which spends, and the session, which grants.
#[derive(Debug)]
pub(super) struct CreditWindow {
    balance: AtomicI64,
    /// Bytes that were spent and are queued for the link.
    queued: AtomicU64,
    closed: AtomicBool,
    waker: AtomicWaker,
}

impl CreditWindow {
    pub(super) fn new(credit: u64) -> Self {
        let balance = AtomicI64::new(i64::try_from(credit).unwrap_or(i64::MAX));
        Self { balance, queued: AtomicU64::new(0), closed: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    pub(super) fn grant(&self, bytes: u64) {
        let add = |balance: i64| Some(balance.saturating_add_unsigned(bytes));
        // The closure always returns a value, so the update cannot fail.
        let _ = self.balance.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        self.waker.wake();
    }

    /// Handles that a message has left the queue.
    pub(super) fn on_sent(&self, cost: u64) {
        // Only a sender that waits for this is woken.
        if self.queued.fetch_sub(cost, Ordering::AcqRel) >= MAX_QUEUED {
            self.waker.wake();
        }
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
        if self.queued.load(Ordering::Acquire) >= MAX_QUEUED {
            return None;
        }
        let spend = |balance: i64| (balance > 0).then(|| balance.saturating_sub_unsigned(cost));
        self.balance.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend).ok()?;
        self.queued.fetch_add(cost, Ordering::AcqRel);
        Some(Ok(()))
    }

    /// Ready after the cost was subtracted from a balance above zero, while few bytes of the call are queued for the link.
    /// [`CreditWindow::on_sent`] must follow.
    pub(super) fn poll_spend(&self, cost: u64, cx: &Context<'_>) -> Poll<Result<(), Cancelled>> {
        if let Some(spent) = self.try_spend(cost) {
            return Poll::Ready(spent);
        }
        self.waker.register(cx.waker());
        // Credit may have arrived, or messages been sent, between the check and the registration.
        self.try_spend(cost).map_or(Poll::Pending, Poll::Ready)
    }
}
