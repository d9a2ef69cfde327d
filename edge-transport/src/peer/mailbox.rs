//! Replies on their way from the session to the caller. Bounded by the call's credit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::frame::{End, Failure, Reason, cost};

#[derive(Debug, Default)]
struct Letters {
    messages: VecDeque<Bytes>,
    end: Option<End>,
    ended: bool,
    waker: Option<Waker>,
    /// Credit that has been read and not given back.
    read: u64,
    /// The session has been asked to give it back.
    asked: bool,
}

#[derive(Debug, Default)]
struct Mailbox {
    letters: Mutex<Letters>,
    /// The caller has gone without waiting for the end.
    left: AtomicBool,
}

impl Mailbox {
    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session's end.
#[derive(Debug)]
pub(super) struct MailSender(Arc<Mailbox>);

/// The caller's end.
#[derive(Debug)]
pub(super) struct MailReceiver {
    mailbox: Arc<Mailbox>,
    /// Credit is given back when so much has been read.
    threshold: u64,
}

/// What a caller finds in its mailbox.
#[derive(Debug)]
pub(super) enum Mail {
    Message {
        message: Bytes,
        /// The session should give credit back.
        credit: bool,
    },
    End(End),
    /// The end has been read already.
    Nothing,
}

pub(super) fn mailbox(credit: u64) -> (MailSender, MailReceiver) {
    let mailbox = Arc::new(Mailbox::default());
    (MailSender(Arc::clone(&mailbox)), MailReceiver { mailbox, threshold: (credit / 2).max(1) })
}

impl MailSender {
    pub(super) fn put(&self, message: Option<Bytes>, end: Option<End>) {
        let mut letters = self.0.letters();
        letters.messages.extend(message);
        if let Some(end) = end
            && !letters.ended
        {
            letters.ended = true;
            letters.end = Some(end);
        }
        let waker = letters.waker.take();
        drop(letters);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the caller has left.
    pub(super) fn is_left(&self) -> bool {
        self.0.left.load(Ordering::Acquire)
    }

    /// Takes the credit that the caller has read.
    pub(super) fn take_read(&self) -> u64 {
        let mut letters = self.0.letters();
        letters.asked = false;
        std::mem::take(&mut letters.read)
    }
}

impl Drop for MailSender {
    fn drop(&mut self) {
        let failure = Failure::new(Reason::LinkLost, "this peer has stopped; the work may go on");
        self.put(None, Some(End::Failed(failure)));
    }
}

impl MailReceiver {
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Mail> {
        let mut letters = self.mailbox.letters();
        if let Some(message) = letters.messages.pop_front() {
            letters.read += cost(&message);
            let credit = letters.read >= self.threshold && !letters.asked && !letters.ended;
            letters.asked |= credit;
            return Poll::Ready(Mail::Message { message, credit });
        }
        if letters.ended {
            return Poll::Ready(letters.end.take().map_or(Mail::Nothing, Mail::End));
        }
        match &mut letters.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// The caller waits no longer. Whether the session is to be told: not if the call's end has come, read or not.
    pub(super) fn leave(&self) -> bool {
        self.mailbox.left.store(true, Ordering::Release);
        !self.mailbox.letters().ended
    }
}
