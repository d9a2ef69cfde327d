//! The replies of one call that its requester may not have.

use std::collections::VecDeque;

use crate::frame::{End, Reply, cost};

#[derive(Debug)]
struct Kept {
    reply: Reply,
    /// What all messages up to and with this one have cost.
    spent: u64,
}

/// Replies in their order, without a gap.
#[derive(Debug, Default)]
pub(super) struct KeptReplies {
    replies: VecDeque<Kept>,
    bytes: usize,
}

/// What keeping a reply takes, in bytes, so that empty ones are bounded too.
fn bytes(reply: &Reply) -> usize {
    let closing = if let Some(End::Finished(closing)) = &reply.end { closing.len() } else { 0 };
    reply.message.as_ref().map_or(0, bytes::Bytes::len) + closing + size_of::<Kept>()
}

impl KeptReplies {
    /// Adds the next reply, and returns its bytes.
    pub(super) fn push(&mut self, reply: Reply, spent: u64) -> usize {
        let bytes = bytes(&reply);
        self.bytes += bytes;
        if self.replies.capacity() == 0 {
            // Most calls have one reply.
            self.replies.reserve_exact(1);
        }
        self.replies.push_back(Kept { reply, spent });
        bytes
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sequence of the first reply.
    pub(super) fn first(&self) -> Option<u64> {
        self.replies.front().map(|kept| kept.reply.sequence)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Reply> {
        self.replies.iter().map(|kept| &kept.reply)
    }

    /// What the messages here cost of the call's credit.
    pub(super) fn cost(&self) -> u64 {
        self.iter().filter_map(|reply| reply.message.as_ref()).map(cost).sum()
    }

    /// The requester has all replies before this one. Returns the bytes that are free.
    pub(super) fn received(&mut self, next_sequence: u64) -> usize {
        self.free_while(|kept| kept.reply.sequence < next_sequence)
    }

    /// The requester gives credit for what it has read: all that it gave after the first. Returns the bytes that are free.
    pub(super) fn read(&mut self, granted: u64, first_credit: u64) -> usize {
        let read = granted.saturating_sub(first_credit);
        self.free_while(|kept| kept.spent <= read && kept.reply.end.is_none())
    }

    pub(super) fn clear(&mut self) -> usize {
        self.replies = VecDeque::new();
        std::mem::take(&mut self.bytes)
    }

    fn free_while(&mut self, free: impl Fn(&Kept) -> bool) -> usize {
        let before = self.bytes;
        while let Some(kept) = self.replies.front().filter(|kept| free(kept)) {
            self.bytes -= bytes(&kept.reply);
            self.replies.pop_front();
        }
        before - self.bytes
    }
}
