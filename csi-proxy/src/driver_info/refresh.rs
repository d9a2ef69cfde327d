//! Runs a [`Cache`] on tokio: sends its calls, stores its records and answers callers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use csi_proto::{Code, DriverName};
use futures_util::StreamExt as _;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex as AsyncMutex, Notify, OnceCell, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::cache::{Cache, Entry, Mode, Notice, StartupStatus};
use super::info::Info;
use super::question::Question;
use super::store::DriverInfoStore;
use crate::call::text::printable;
use crate::call::{Call, CallId, Fault, MethodPath, NodeId, Outcome, Replies};
use crate::observe::Observation;
use crate::relay::Relay;
use crate::routing::Claims;
use crate::routing::store::{PlacementStore, StoreError};

/// The timeout of one background call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a known answer of all nodes together waits until most of them have answered.
const REPRESENTATIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The total time to wait for nodes that cannot be selected.
const ABSENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of concurrent rounds where all nodes answer together.
pub(crate) const MAX_CONCURRENT_ROUNDS: usize = 16;

/// The cache of a driver and its refresh loop.
pub(crate) struct DriverInfo {
    driver: DriverName,
    max_rounds: usize,
    cache: Mutex<Cache>,
    store: OnceLock<Arc<dyn DriverInfoStore>>,
    /// What each node owns, where nodes answer together. The lock is held until a claim is durable.
    claims: Option<(AsyncMutex<Claims>, Arc<dyn PlacementStore>)>,
    loaded: OnceCell<()>,
    /// Signals a changed answer or the end of a round.
    changed_signal: watch::Sender<()>,
    /// Wakes the refresh loop, since a round may be due.
    wake: Notify,
}

impl DriverInfo {
    pub(crate) fn new(driver: DriverName, mode: Mode) -> Arc<Self> {
        let max_rounds = match mode {
            // Each node has a socket, so the number of sockets is the limit.
            Mode::Each { .. } => usize::MAX,
            Mode::Together { .. } => MAX_CONCURRENT_ROUNDS,
        };
        let cache = Mutex::new(Cache::new(driver.clone(), mode));
        let (changed_signal, wake) = (watch::Sender::new(()), Notify::new());
        let (store, claims, loaded) = (OnceLock::new(), None, OnceCell::new());
        Arc::new(Self { driver, max_rounds, cache, store, claims, loaded, changed_signal, wake })
    }

    /// Like [`Self::new`], for nodes that take part only with what is theirs by these claims.
    pub(crate) fn with_claims<S: DriverInfoStore + PlacementStore + 'static>(
        driver: DriverName,
        mode: Mode,
        store: Arc<S>,
        claims: Claims,
    ) -> Arc<Self> {
        let mut this = Self::new(driver, mode);
        this.store_in(Arc::clone(&store) as _);
        this.change(|cache, _| cache.require_admission());
        if let Some(this) = Arc::get_mut(&mut this) {
            this.claims = Some((AsyncMutex::new(claims), store));
        }
        this
    }

    /// Sets the store, unless there is one.
    pub(crate) fn store_in(&self, store: Arc<dyn DriverInfoStore>) {
        let _ = self.store.set(store);
    }

    /// Admits a node once what it reports is durably its own, or refuses it.
    async fn admit(&self, node: &NodeId) {
        let Some((claims, store)) = &self.claims else { return };
        let mut claims = claims.lock().await;
        let Some(reported) = self.read(|cache| cache.to_admit(node)) else { return };
        let conflict = match claims.check(node, &reported.0, &reported.1) {
            Ok(None) => None,
            Ok(Some(claim)) => {
                if let Err(error) = store.set_claim(node, Some(&claim)).await {
                    tracing::warn!(driver = %self.driver, %node, %error, "cannot store what a node owns, it takes no part until that succeeds");
                    return;
                }
                claims.apply(node, Some(claim));
                None
            }
            Err(conflict) => Some(conflict),
        };
        if self.change(|cache, now| cache.admit(node, &reported, conflict.clone(), now)) {
            match conflict {
                Some(reason) => {
                    let reason = printable(&reason.to_string());
                    tracing::warn!(driver = %self.driver, %node, %reason, "node is quarantined, it gets no volumes and no calls until it is corrected");
                }
                None => tracing::debug!(driver = %self.driver, %node, "node admitted"),
            }
        }
    }

    /// Admits the nodes that are not admitted yet, in the order of their names.
    pub(crate) async fn admit_all(&self) {
        let nodes: Vec<_> = self.read(|cache| cache.entries().map(|(node, _)| node.clone()).collect());
        for node in &nodes {
            self.admit(node).await;
        }
    }

    /// Releases what a node owns, so that another node may report it.
    ///
    /// # Errors
    /// If the release may not be durable.
    pub(crate) async fn release_claim(&self, node: &NodeId) -> Result<(), StoreError> {
        let Some((claims, store)) = &self.claims else { return Ok(()) };
        let mut claims = claims.lock().await;
        store.set_claim(node, None).await?;
        claims.apply(node, None);
        Ok(())
    }

    /// Loads the stored records, once. Unreadable records are refreshed.
    pub(crate) async fn load(&self) {
        let load = async {
            let Some(store) = self.store.get() else { return };
            let kept = match timeout(CALL_TIMEOUT, store.load()).await.unwrap_or(Err(StoreError::Late)) {
                Ok(kept) => kept,
                Err(error) => {
                    tracing::warn!(driver = %self.driver, %error, "cannot read stored driver info, refreshing");
                    return;
                }
            };
            let read = |(node, record): (NodeId, Bytes)| {
                let Some((info, as_of)) = Info::decode(&record) else {
                    tracing::warn!(driver = %self.driver, %node, "stored driver info is damaged, refreshing");
                    return None;
                };
                Some((node, info, as_of))
            };
            self.cache().restore(kept.into_iter().filter_map(read), now());
            let _ = timeout(CALL_TIMEOUT, self.admit_all()).await;
        };
        self.loaded.get_or_init(|| load).await;
    }

    /// Reads the cache.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Cache) -> T) -> T {
        read(&self.cache())
    }

    /// Changes the cache and wakes the refresh loop.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Cache, std::time::Instant) -> T) -> T {
        let changed = change(&mut self.cache(), now());
        self.wake.notify_one();
        self.changed_signal.send_replace(());
        changed
    }

    /// Reports that a node is online.
    pub(crate) fn arrived(&self, node: &NodeId) {
        let notice = self.change(|cache, now| cache.arrived(node, now));
        notice.into_iter().for_each(|notice| self.log(node, notice));
    }

    /// Removes a node and its record. A record that cannot be removed is harmless.
    pub(crate) async fn remove(&self, node: &NodeId) {
        self.change(|cache, _| cache.remove(node));
        if let Some(store) = self.store.get()
            && let Err(error) = store.save(node, None).await
        {
            tracing::warn!(driver = %self.driver, %node, %error, "cannot remove stored driver info of a node");
        }
    }

    /// Refreshes the `wanted` nodes that cannot be selected now, and waits for them for a limited time.
    pub(crate) async fn refresh_absent(&self, wanted: impl Fn(&NodeId, &Entry) -> bool) {
        let mut changed_signal = self.changed_signal.subscribe();
        let asked = self.change(|cache, now| cache.refresh_absent(wanted, now));
        let answered = async {
            while self.read(|cache| cache.any_in_round(&asked, now())) {
                // `self` holds the sender.
                let _ = changed_signal.changed().await;
            }
        };
        let _ = timeout(ABSENT_TIMEOUT, answered).await;
    }

    /// Answers for a node, or for all nodes together, waiting up to `wait` for an unknown answer.
    pub(crate) async fn answer(&self, of: Option<&NodeId>, question: Question, wait: Duration) -> Replies {
        if question == Question::Probe && self.cache().probed(of) {
            self.wake.notify_one();
        }
        let mut changed_signal = self.changed_signal.subscribe();
        let mut waits = of.is_none() && !matches!(question, Question::PluginInfo | Question::Probe);
        let known = async {
            loop {
                let replies = match self.read(|cache| cache.answer(of, question)) {
                    Some(Ok(message)) => Replies::unary(message, Outcome::from_endpoint(Code::OK, "")),
                    Some(Err(text)) => Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text)),
                    None => {
                        let _ = changed_signal.changed().await;
                        continue;
                    }
                };
                if std::mem::take(&mut waits) && !self.read(Cache::is_representative) {
                    let representative = async {
                        while !self.read(Cache::is_representative) {
                            let _ = changed_signal.changed().await;
                        }
                    };
                    let _ = timeout(REPRESENTATIVE_TIMEOUT.min(wait / 2), representative).await;
                    continue;
                }
                if question != Question::Probe {
                    self.warn_stale(of);
                }
                return replies;
            }
        };
        let late = |_| Replies::outcome(Fault::NotReady { driver: self.driver.clone() });
        timeout(wait, known).await.unwrap_or_else(late)
    }

    /// Refreshes the nodes until the future is dropped.
    pub(crate) async fn run(self: &Arc<Self>, relay: &dyn Relay) {
        self.load().await;
        let mut rounds = FuturesUnordered::new();
        loop {
            let room = self.max_rounds.saturating_sub(rounds.len());
            let (due, later) = self.cache().take_due(room, now());
            rounds.extend(due.into_iter().map(|node| self.round(node, relay)));
            #[cfg(feature = "metrics")]
            {
                // The age of the node with the youngest answers.
                if let Some(age) = self.status(None).age {
                    crate::metrics::startup_age(&self.driver, age);
                }
            }
            let next = OptionFuture::from(later.map(|later| sleep_until(later.into())));
            tokio::select! {
                Some(()) = rounds.next(), if !rounds.is_empty() => {}
                Some(()) = next, if rounds.len() < self.max_rounds => {}
                () = self.wake.notified() => {}
            }
        }
    }

    async fn round(self: &Arc<Self>, node: NodeId, relay: &dyn Relay) {
        let mut question = Question::PluginInfo;
        loop {
            let late = |_| Err(Fault::Deadline { waited: CALL_TIMEOUT }.into());
            let answer = timeout(CALL_TIMEOUT, self.ask(relay, &node, question)).await.unwrap_or_else(late);
            let (next, notices) = self.cache().answered(&node, question, answer, now(), SystemTime::now());
            notices.into_iter().for_each(|notice| self.log(&node, notice));
            if question == Question::NodeInfo {
                // A hanging disk must not delay the rounds of other nodes for long.
                let _ = timeout(CALL_TIMEOUT, self.admit(&node)).await;
            }
            self.changed_signal.send_replace(());
            match next {
                Some(next) => question = next,
                None => break,
            }
        }
        let this = Arc::clone(self);
        // A hanging disk must not delay the next round.
        tokio::spawn(async move { this.save(&node, false).await });
    }

    /// Sends a start-up call to the driver of a node.
    async fn ask(&self, relay: &dyn Relay, node: &NodeId, question: Question) -> Result<Bytes, Outcome> {
        let method = MethodPath::new(question.path())
            .map_err(|error| Fault::Protocol { reason: error.to_string() })?;
        let call = Call::new(CallId::new(), node.clone(), self.driver.clone(), method, Bytes::new());
        let call = call.with_remaining(CALL_TIMEOUT);
        let observation = Observation::start("endpoint", &call);
        let answer = observation.answered(relay.relay(call).await);
        match answer.unwrap_or_else(Replies::outcome).read_unary().await {
            (Some(message), outcome) if outcome.is_ok() => Ok(message),
            (_, outcome) => Err(outcome),
        }
    }

    /// Stores the record of a node if needed.
    async fn save(&self, node: &NodeId, is_last: bool) {
        let Some(store) = self.store.get() else { return };
        let Some((record, as_of)) = self.cache().take_record(node, is_last) else { return };
        let saved = store.save(node, Some(record)).await;
        self.cache().saved(node, as_of, saved.is_ok());
        match saved {
            Ok(()) => {
                tracing::debug!(driver = %self.driver, %node, "driver info stored");
            }
            Err(error) => {
                tracing::warn!(driver = %self.driver, %error, "cannot store driver info, retrying");
            }
        }
        self.changed_signal.send_replace(());
    }

    /// Stores all records before the shutdown, with the time at which the driver last confirmed its answers.
    pub(crate) async fn save_all(&self) {
        let nodes: Vec<_> = self.read(|cache| cache.entries().map(|(node, _)| node.clone()).collect());
        let saved = async {
            for node in &nodes {
                self.save(node, true).await;
            }
        };
        let _ = timeout(CALL_TIMEOUT, saved).await;
    }

    /// The status of the answers.
    pub(crate) fn status(&self, of: Option<&NodeId>) -> StartupStatus {
        self.read(|cache| cache.status(of, SystemTime::now()))
    }

    fn log(&self, node: &NodeId, notice: Notice) {
        let driver = &self.driver;
        match notice {
            Notice::NameMismatch { found } => tracing::warn!(
                %driver, %node, found = %printable(&found),
                "name in GetPluginInfo differs from the configured driver name, which sidecars get"
            ),
            Notice::Unreachable(outcome) => tracing::warn!(
                %driver, %node, code = %outcome.code, message = %outcome.redacted_message(),
                "driver unreachable, Probe reports not ready"
            ),
            Notice::TooMany => tracing::error!(
                %node,
                max = super::MAX_NODES,
                "too many nodes for one route, ignoring this one and further ones"
            ),
            Notice::TooLarge { question, found, max } => tracing::warn!(
                %driver, %node, method = question.path(), found, max,
                "start-up answer is too large, the driver of the node counts as unreachable"
            ),
            Notice::Reached => tracing::info!(%driver, %node, "driver reachable"),
            Notice::Moved { before, now } => {
                let [before, now] = [before, now].map(|place| printable(&format!("{:?}", place.segments)));
                tracing::warn!(
                    %node, %before, %now,
                    "topology of a node changed, its volumes may be unreachable for pods"
                );
            }
        }
    }

    /// Counts a stale answer, and logs its age once per outage.
    fn warn_stale(&self, of: Option<&NodeId>) {
        let StartupStatus { reached, age: Some(age), .. } = self.status(of) else { return };
        if reached == Some(true) {
            return;
        }
        #[cfg(feature = "metrics")]
        crate::metrics::stale_answer(&self.driver);
        if !self.cache().report_stale(of) {
            return;
        }
        let (driver, age) = (&self.driver, Duration::from_secs(age.as_secs()));
        if reached.is_some() {
            tracing::warn!(%driver, ?age, "driver unreachable, answering sidecars from the cache");
        } else {
            tracing::info!(%driver, ?age, "answering sidecars from stored driver info, refresh in progress");
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The clock of tokio, which tests may pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl fmt::Debug for DriverInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverInfo").field("driver", &self.driver).finish_non_exhaustive()
    }
}

/// A view of the start-up answers of an endpoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StartupView {
    driver_info: Arc<DriverInfo>,
    of: Option<NodeId>,
}

impl StartupView {
    pub(crate) fn new(driver_info: Arc<DriverInfo>, of: Option<NodeId>) -> Self {
        Self { driver_info, of }
    }

    /// The current status of the start-up answers.
    #[must_use]
    pub fn status(&self) -> StartupStatus {
        self.driver_info.status(self.of.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::log::Log;

    #[test]
    fn text_of_a_driver_forges_no_line_and_is_bounded() {
        let driver = DriverInfo::new("vendor".parse().unwrap(), Mode::Each { node_info: false });
        let forged = "X\n2026 ERROR forged\r\x1b[31m\u{202e}";
        let place = |key: &str| csi_proto::csi::v1::Topology::from_iter([(key, forged.repeat(3000))]);
        for notice in [
            Notice::NameMismatch { found: forged.repeat(3000) },
            Notice::Moved { before: place("a"), now: place("b") },
        ] {
            let (log, _logging) = Log::start(tracing::Level::INFO);
            driver.log(&"edge-1".parse().unwrap(), notice);
            let text = log.text();
            assert!(text.lines().count() == 1 && text.len() < 4000, "{} bytes", text.len());
            assert!(!text.contains(['\r', '\x1b', '\u{202e}']) && text.contains(r"X\n2026"), "{text}");
        }
    }
}
