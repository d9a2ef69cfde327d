//! The messages, as the module's own page has them.

use prost::Message;

#[cfg(feature = "runtime")]
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Question {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(message, optional, tag = "2")]
    pub(super) report: Option<ReportMessage>,
    #[prost(string, repeated, tag = "3")]
    pub(super) only: Vec<String>,
}

#[cfg(feature = "runtime")]
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ReportMessage {
    #[prost(string, tag = "1")]
    pub(super) peer: String,
    #[prost(bool, tag = "2")]
    pub(super) done: bool,
    #[prost(string, tag = "3")]
    pub(super) words: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Update {
    #[prost(bool, tag = "1")]
    pub(super) reset: bool,
    #[prost(message, repeated, tag = "2")]
    pub(super) up: Vec<Entry>,
    #[prost(string, repeated, tag = "3")]
    pub(super) down: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) gone: Vec<String>,
    #[prost(bool, tag = "5")]
    pub(super) complete: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) peer: String,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
}
