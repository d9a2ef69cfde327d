//! A relay that holds calls while there is no way to their node.

use std::time::Duration;

use async_trait::async_trait;
use csi_proto::Method;
use csi_proto::method::Service;
use tokio::time::Instant;

use super::{Relay, RelayError};
use crate::call::Call;
use crate::fault::Fault;
use crate::replies::Replies;

/// First wait before a held call is tried again; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Holds a call that found no way, and tries it again until there is one, the caller's time is over, or it was held for as
/// long as allowed; then the caller learns that the node was offline, if a try has come so far, or else of the last failure.
///
/// Only calls that never left are held: their hub or their node was not connected. Nothing is sent twice by it. A held call
/// counts as open at the endpoint, whose bound it is subject to. The questions of the Identity service are not held: no sidecar
/// waits for them, and whoever asks them wants to know whether there is a way.
#[derive(Debug, Clone)]
pub struct PatientRelay<R> {
    way: R,
    hold: Duration,
}

impl<R: Relay> PatientRelay<R> {
    /// Holds calls at most so long; zero holds none.
    #[must_use]
    pub fn new(way: R, hold: Duration) -> Self {
        Self { way, hold }
    }
}

#[async_trait]
impl<R: Relay> Relay for PatientRelay<R> {
    async fn relay(&self, mut call: Call) -> Result<Replies, RelayError> {
        let method = Method::from_path(call.method.as_str());
        if self.hold.is_zero() || method.map(Method::service) == Some(Service::Identity) {
            return self.way.relay(call).await;
        }
        let (began, remaining) = (Instant::now(), call.remaining);
        let hold = remaining.map_or(self.hold, |remaining| remaining.min(self.hold));
        let (mut wait, mut offline) = (FIRST_WAIT, None);
        loop {
            let error = match self.way.relay(call.clone()).await {
                Err(error) if never_left(error.fault()) => error,
                end => return end,
            };
            // That no hub can be reached is a proof that nothing was sent, and would not be one for the tries before.
            if matches!(error.fault(), Fault::NodeOffline { .. }) {
                offline = Some(error.clone());
            }
            if began.elapsed() + wait >= hold {
                return Err(offline.unwrap_or(error));
            }
            tokio::time::sleep(wait).await;
            wait = (2 * wait).min(LONGEST_WAIT);
            call.remaining = remaining.map(|remaining| remaining.saturating_sub(began.elapsed()));
        }
    }
}

/// Whether the request provably is nowhere, and may have a way soon.
const fn never_left(fault: &Fault) -> bool {
    matches!(fault, Fault::NodeOffline { .. } | Fault::HubUnreachable { .. })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::sync::Mutex;

    use bytes::Bytes;
    use csi_proto::DriverName;

    use super::*;
    use crate::call::{CallId, MethodPath, NodeId};
    use crate::relay::{Fate, FaultyRelay};

    /// Answers every call, and keeps how long each had.
    #[derive(Default)]
    struct Answers(Mutex<Vec<Option<Duration>>>);

    #[async_trait]
    impl Relay for std::sync::Arc<Answers> {
        async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
            self.0.lock().unwrap().push(call.remaining);
            Ok(Replies::outcome(crate::Outcome::ok()))
        }
    }

    fn offline() -> Fault {
        Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() }
    }

    fn call() -> Call {
        let (node, driver) = (NodeId::new("edge-1").unwrap(), DriverName::new("csi-hostpath").unwrap());
        let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
        Call::new(CallId::from_bytes([7; 16]), node, driver, method, Bytes::new())
    }

    fn relay(
        faults: impl IntoIterator<Item = Fault>,
        hold: u64,
    ) -> (PatientRelay<FaultyRelay<std::sync::Arc<Answers>>>, std::sync::Arc<Answers>) {
        let answers = std::sync::Arc::new(Answers::default());
        let faulty = FaultyRelay::new(std::sync::Arc::clone(&answers), faults.into_iter().map(Fate::Lost));
        (PatientRelay::new(faulty, Duration::from_secs(hold)), answers)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_way_is_held_until_there_is_one_and_has_less_time_then() {
        let unreachable = Fault::HubUnreachable { reason: "no".to_owned() };
        let (relay, answers) = relay([offline(), unreachable, offline()], 10);
        drop(relay.relay(call().with_remaining(Duration::from_secs(5))).await.unwrap());
        // Three waits: 50, 100 and 200 ms.
        assert_eq!(*answers.0.lock().unwrap(), [Some(Duration::from_millis(4650))]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_held_for_so_long_and_never_longer_than_its_caller_waits() {
        for (remaining, bound) in [(None, 3), (Some(Duration::from_secs(2)), 2)] {
            let (relay, answers) = relay(vec![offline(); 100], 3);
            let mut call = call();
            call.remaining = remaining;
            let began = Instant::now();
            assert_eq!(relay.relay(call).await.err().map(RelayError::into_fault), Some(offline()));
            assert!(began.elapsed() <= Duration::from_secs(bound), "{:?}", began.elapsed());
            assert!(answers.0.lock().unwrap().is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hub_that_is_lost_at_the_end_does_not_prove_that_nothing_was_ever_sent() {
        let unreachable = Fault::HubUnreachable { reason: "no".to_owned() };
        let faults = std::iter::once(offline()).chain(vec![unreachable; 100]);
        let (relay, _) = relay(faults, 3);
        assert_eq!(relay.relay(call()).await.err().map(RelayError::into_fault), Some(offline()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_have_been_sent_and_a_hold_of_zero_are_not_tried_again() {
        let lost = Fault::LinkLost { reason: "cut".to_owned() };
        for (fault, hold) in [(lost, 10), (offline(), 0)] {
            let (relay, answers) = relay([fault.clone()], hold);
            assert_eq!(relay.relay(call()).await.err().map(RelayError::into_fault), Some(fault));
            assert!(answers.0.lock().unwrap().is_empty());
        }
    }
}
