//! Replaces the dispatcher: answers calls by the name of their driver, and records how they arrived.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::Code;
use futures_util::{StreamExt as _, stream};
use tokio::sync::{Notify, watch};

use crate::call::{Call, CallId, Fault, Metadata, Outcome, Replies, Reply};
use crate::relay::Relay;

/// The number of messages of a long stream.
pub(super) const STREAMED: u32 = 500;

/// The number of messages of a stream that pauses after the first one.
pub(super) const PAUSED: u32 = 3;

/// A call that arrived, without its body, and how many copies of it did.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    pub(super) call: Call,
    pub(super) copies: usize,
}

/// Work that waits until it is released.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) started: Notify,
    pub(super) done: Notify,
    released: watch::Sender<bool>,
}

impl Work {
    pub(super) fn release(&self) {
        self.released.send_replace(true);
    }

    async fn run(self: Arc<Self>) {
        self.started.notify_one();
        // The sender is part of `self`.
        let _ = self.released.subscribe().wait_for(|released| *released).await;
        self.done.notify_one();
    }
}

/// The far end of the relay.
#[derive(Debug, Default)]
pub(super) struct FarEnd {
    arrived: Mutex<HashMap<CallId, Arrived>>,
    work: Mutex<HashMap<String, Arc<Work>>>,
}

impl FarEnd {
    pub(super) fn arrived(&self, id: CallId) -> Option<Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The calls that the far end answered as a driver, with more than one copy that arrived.
    pub(super) fn repeated(&self) -> Vec<Arrived> {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let repeated = arrived.values().filter(|one| one.copies > 1 && one.call.driver.as_str() != "fault");
        repeated.cloned().collect()
    }

    /// The work of the calls to a driver.
    pub(super) fn work(&self, driver: &str) -> Arc<Work> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(work.entry(driver.to_owned()).or_default())
    }

    fn record(&self, call: &Call) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let call = Call { body: Bytes::new(), ..call.clone() };
        arrived.entry(call.id).or_insert(Arrived { call, copies: 0 }).copies += 1;
    }
}

#[async_trait]
impl Relay for FarEnd {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        self.record(&call);
        let driver = call.driver.as_str();
        match driver {
            "echo" => Ok(Replies::unary(call.body, Outcome::ok())),
            "fail" => {
                let number = <[u8; 4]>::try_from(&*call.body).map(u32::from_be_bytes);
                Ok(Replies::outcome(failure(Code::new(number.unwrap_or_default()))))
            }
            "stream" => {
                let end = Reply::End(failure(Code::OUT_OF_RANGE));
                let parts = (0..STREAMED).map(|number| Reply::Message(numbered(number))).chain([end]);
                Ok(Replies::stream(stream::iter(parts)))
            }
            _ if driver.starts_with("hang") => {
                // In a separate task, as in a dispatcher.
                let _ = tokio::spawn(self.work(driver).run()).await;
                Ok(Replies::unary(Bytes::new(), Outcome::ok()))
            }
            _ if driver.starts_with("pause") => {
                let work = self.work(driver);
                let first = stream::iter([Reply::Message(numbered(0))]);
                let rest = (1..PAUSED).map(|number| Reply::Message(numbered(number)));
                let rest = stream::iter(rest.chain([Reply::End(Outcome::ok())]));
                let rest = stream::once(work.run()).flat_map(move |()| rest.clone());
                Ok(Replies::stream(first.chain(rest)))
            }
            _ => Err(link_lost()),
        }
    }
}

pub(super) fn numbered(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

pub(super) fn failure(code: Code) -> Outcome {
    let mut trailers = Metadata::default();
    // A short entry of plain characters is always valid.
    let _ = trailers.insert("x-vendor-bin", "AAEC");
    Outcome::from_driver(code, "größe: 50% von 盤\n".repeat(100))
        .with_details(vec![0, 1, 0xff])
        .with_trailers(trailers)
}

pub(super) fn link_lost() -> Fault {
    Fault::LinkLost { reason: "reported by the far end".to_owned() }
}
