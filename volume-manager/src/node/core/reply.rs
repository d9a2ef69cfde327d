//! Replies to requests.

use std::fmt;

/// Receives the answer to a request.
pub trait ReplyTo<T>: Send {
    /// Delivers the answer.
    fn answer(self: Box<Self>, answer: T);

    /// Returns whether the request was abandoned.
    fn is_closed(&self) -> bool;
}

/// A reply that discards the answer.
impl<T> ReplyTo<T> for () {
    fn answer(self: Box<Self>, _: T) {}

    fn is_closed(&self) -> bool {
        true
    }
}

/// The reply handle of one request.
pub struct Reply<T>(Box<dyn ReplyTo<T>>);

impl<T: Send + 'static> Reply<T> {
    /// Creates a handle that delivers to `to`.
    pub fn new(to: impl ReplyTo<T> + 'static) -> Self {
        Self(Box::new(to))
    }

    /// Converts the handle to another answer type.
    pub(super) fn map<U: Send + 'static>(self, map: impl FnOnce(U) -> T + Send + 'static) -> Reply<U> {
        Reply::new(Mapped { reply: self, map })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    pub(super) fn into_answer(self, answer: T) -> Answer {
        Answer(Box::new(move || self.0.answer(answer)))
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

struct Mapped<T, F> {
    reply: Reply<T>,
    map: F,
}

impl<T, U, F: FnOnce(U) -> T + Send> ReplyTo<U> for Mapped<T, F> {
    fn answer(self: Box<Self>, answer: U) {
        let Self { reply, map } = *self;
        reply.0.answer(map(answer));
    }

    fn is_closed(&self) -> bool {
        self.reply.0.is_closed()
    }
}

/// An answer that is ready for delivery.
pub struct Answer(Box<dyn FnOnce() + Send>);

impl Answer {
    /// Delivers the answer.
    pub fn deliver(self) {
        (self.0)();
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
