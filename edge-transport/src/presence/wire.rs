//! The messages, as the module's own page has them.

use prost::Message;

#[cfg(feature = "runtime")]
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Question {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) only: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Update {
    #[prost(bool, tag = "1")]
    pub(super) reset: bool,
    #[prost(message, repeated, tag = "2")]
    pub(super) up: Vec<Entry>,
    #[prost(string, repeated, tag = "3")]
    pub(super) down: Vec<String>,
    #[prost(bool, tag = "4")]
    pub(super) complete: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) peer: String,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
}
