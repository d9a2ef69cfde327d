//! Commands to a faulty link while it runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// A direction, from the view of the wrapped end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// Frames that the wrapped end sends.
    Sending,
    /// Frames that the wrapped end receives.
    Receiving,
    /// Frames in both directions.
    Both,
}

/// What happens to the frames of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Frames pass.
    Passing,
    /// Frames are held back.
    Stalled,
    /// Frames are dropped silently.
    Blackhole,
    /// The direction has ended.
    Cut,
}

#[derive(Debug)]
struct State {
    sending: Mode,
    receiving: Mode,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

/// State shared by the handle and the link.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<State>>);

impl Shared {
    pub(super) fn new() -> Self {
        let state = State { sending: Mode::Passing, receiving: Mode::Passing, sender: None, receiver: None };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sending mode; wakes the context when it changes.
    pub(super) fn sending(&self, cx: Option<&mut Context<'_>>) -> Mode {
        let mut state = self.state();
        if let Some(cx) = cx {
            state.sender = Some(cx.waker().clone());
        }
        state.sending
    }

    /// Returns the receiving mode; wakes the context when it changes.
    pub(super) fn receiving(&self, cx: &mut Context<'_>) -> Mode {
        let mut state = self.state();
        state.receiver = Some(cx.waker().clone());
        state.receiving
    }

    pub(super) fn is_cut_both_ways(&self) -> bool {
        let state = self.state();
        state.sending == Mode::Cut && state.receiving == Mode::Cut
    }

    /// Changes a direction's mode; a cut direction stays cut.
    pub(super) fn set(&self, direction: Direction, mode: Mode) {
        let wakers = {
            let mut state = self.state();
            if direction != Direction::Receiving && state.sending != Mode::Cut {
                state.sending = mode;
            }
            if direction != Direction::Sending && state.receiving != Mode::Cut {
                state.receiving = mode;
            }
            [state.sender.take(), state.receiver.take()]
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Commands to a faulty link. Cheap to clone; works as long as the link is polled.
#[derive(Clone)]
pub struct Handle {
    seed: u64,
    shared: Shared,
}

impl Handle {
    pub(super) const fn new(seed: u64, shared: Shared) -> Self {
        Self { seed, shared }
    }

    /// Cuts a direction permanently. Once both are cut, the inner link is dropped, which ends the link at the other end.
    pub fn cut(&self, direction: Direction) {
        self.shared.set(direction, Mode::Cut);
    }

    /// Holds frames back without loss until [`Handle::heal`].
    pub fn stall(&self, direction: Direction) {
        self.shared.set(direction, Mode::Stalled);
    }

    /// Drops frames silently in both directions while both ends keep the link open, until [`Handle::heal`].
    pub fn half_open(&self) {
        self.shared.set(Direction::Both, Mode::Blackhole);
    }

    /// Ends a stall or a half-open state. Dropped frames stay lost, and a cut direction stays cut.
    pub fn heal(&self) {
        self.shared.set(Direction::Both, Mode::Passing);
    }

    /// The seed of the random faults.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("Handle")
            .field("seed", &self.seed)
            .field("sending", &state.sending)
            .field("receiving", &state.receiving)
            .finish()
    }
}
