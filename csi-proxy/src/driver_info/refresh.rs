//! Drives a [`Cache`] on tokio: asks, keeps, answers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use csi_proto::{Code, DriverName};
use futures_util::StreamExt as _;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::cache::{Cache, Mode, News, Status};
use super::info::Info;
use super::question::Question;
use super::store::DriverInfoStore;
use crate::call::{Call, CallId, Fault, MethodPath, NodeId, Outcome, Replies};
use crate::observe::Observation;
use crate::relay::Relay;
use crate::routing::store::StoreError;

/// How long one background question may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long nodes that cannot be chosen are waited for, all together.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Nodes that are asked at once where all answer together.
pub(crate) const AT_ONCE: usize = 16;

/// A driver's cache, and the one loop that refreshes it.
pub(crate) struct DriverInfo {
    driver: DriverName,
    at_once: usize,
    cache: Mutex<Cache>,
    store: Option<Arc<dyn DriverInfoStore>>,
    loaded: OnceCell<()>,
    /// Something was learnt, or a round has ended.
    learnt: watch::Sender<()>,
    /// A round may be due.
    wake: Notify,
}

impl DriverInfo {
    pub(crate) fn new(driver: DriverName, mode: Mode, store: Option<Arc<dyn DriverInfoStore>>) -> Arc<Self> {
        let at_once = match mode {
            // As many as there are: each has a socket.
            Mode::Each { .. } => usize::MAX,
            Mode::Together { .. } => AT_ONCE,
        };
        let cache = Mutex::new(Cache::new(driver.clone(), mode));
        let (learnt, wake) = (watch::Sender::new(()), Notify::new());
        Arc::new(Self { driver, at_once, cache, store, loaded: OnceCell::new(), learnt, wake })
    }

    /// Takes in what was kept, once. What cannot be read is learnt again.
    pub(crate) async fn load(&self) {
        let load = async {
            let Some(store) = &self.store else { return };
            let kept = match timeout(PATIENCE, store.load()).await.unwrap_or(Err(StoreError::Late)) {
                Ok(kept) => kept,
                Err(error) => {
                    tracing::warn!(driver = %self.driver, %error, "what was kept of the driver cannot be read; learning it again");
                    return;
                }
            };
            let read = |(node, record): (NodeId, Bytes)| {
                let Some((info, as_of)) = Info::decode(&record) else {
                    tracing::warn!(driver = %self.driver, %node, "what was kept of the driver is damaged; learning it again");
                    return None;
                };
                Some((node, info, as_of))
            };
            self.cache().restore(kept.into_iter().filter_map(read), now());
        };
        self.loaded.get_or_init(|| load).await;
    }

    /// Looks at the cache.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Cache) -> T) -> T {
        look(&self.cache())
    }

    /// Changes the cache, upon which a round may be due.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Cache, std::time::Instant) -> T) -> T {
        let changed = change(&mut self.cache(), now());
        self.wake.notify_one();
        self.learnt.send_replace(());
        changed
    }

    /// Takes in that a node is there.
    pub(crate) fn arrived(&self, node: &NodeId) {
        let news = self.change(|cache, now| cache.arrived(node, now));
        news.into_iter().for_each(|news| self.tell(node, news));
    }

    /// Takes a node out, and what is kept of it. That this stays on the disk if it cannot be removed does no harm.
    pub(crate) async fn remove(&self, node: &NodeId) {
        self.change(|cache, _| cache.remove(node));
        if let Some(store) = &self.store
            && let Err(error) = store.save(node, None).await
        {
            tracing::warn!(driver = %self.driver, %node, %error, "what was kept of a node could not be removed");
        }
    }

    /// Has those asked now that cannot be chosen, and waits for that, but not long.
    pub(crate) async fn ask_absent(&self) {
        let mut learnt = self.learnt.subscribe();
        let asked = self.change(Cache::ask_absent);
        let answered = async {
            while self.look(|cache| cache.are_open(&asked, now())) {
                // The sender lives as long as `self`.
                let _ = learnt.changed().await;
            }
        };
        let _ = timeout(LAST_WORD, answered).await;
    }

    /// Answers from what is known of a node or of all together, waiting up to `wait` for what is not.
    pub(crate) async fn answer(&self, of: Option<&NodeId>, question: Question, wait: Duration) -> Replies {
        let mut learnt = self.learnt.subscribe();
        let known = async {
            loop {
                let replies = match self.look(|cache| cache.answer(of, question)) {
                    Some(Ok(message)) => Replies::unary(message, Outcome::from_endpoint(Code::OK, "")),
                    Some(Err(text)) => Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text)),
                    None => {
                        let _ = learnt.changed().await;
                        continue;
                    }
                };
                if question != Question::Probe {
                    self.tell_stale(of);
                }
                return replies;
            }
        };
        let late = |_| Replies::outcome(Fault::NotReady { driver: self.driver.clone() });
        timeout(wait, known).await.unwrap_or_else(late)
    }

    /// Asks and asks, until dropped.
    pub(crate) async fn run(self: &Arc<Self>, relay: &dyn Relay) {
        self.load().await;
        let mut rounds = FuturesUnordered::new();
        loop {
            let room = self.at_once.saturating_sub(rounds.len());
            let (due, later) = self.cache().take_due(room, now());
            rounds.extend(due.into_iter().map(|node| self.round(node, relay)));
            #[cfg(feature = "metrics")]
            {
                // That of the node of which it is the youngest.
                if let Some(age) = self.status(None).age {
                    crate::metrics::facts_age(&self.driver, age);
                }
            }
            let next = OptionFuture::from(later.map(|later| sleep_until(later.into())));
            tokio::select! {
                Some(()) = rounds.next(), if !rounds.is_empty() => {}
                Some(()) = next, if rounds.len() < self.at_once => {}
                () = self.wake.notified() => {}
            }
        }
    }

    async fn round(self: &Arc<Self>, node: NodeId, relay: &dyn Relay) {
        let mut question = Question::PluginInfo;
        loop {
            let late = |_| Err(Fault::Deadline { waited: PATIENCE }.into());
            let answer = timeout(PATIENCE, self.ask(relay, &node, question)).await.unwrap_or_else(late);
            let (next, news) = self.cache().answered(&node, question, answer, now(), SystemTime::now());
            news.into_iter().for_each(|news| self.tell(&node, news));
            self.learnt.send_replace(());
            match next {
                Some(next) => question = next,
                None => break,
            }
        }
        let this = Arc::clone(self);
        // A disk that hangs keeps nobody from asking the driver.
        tokio::spawn(async move { this.save(&node, false).await });
    }

    /// Asks a node's driver one of the questions.
    async fn ask(&self, relay: &dyn Relay, node: &NodeId, question: Question) -> Result<Bytes, Outcome> {
        let method = MethodPath::new(question.path())
            .map_err(|error| Fault::Protocol { reason: error.to_string() })?;
        let call = Call::new(CallId::new(), node.clone(), self.driver.clone(), method, Bytes::new());
        let call = call.with_remaining(PATIENCE);
        let observation = Observation::start("endpoint", &call);
        let answer = observation.answered(relay.relay(call).await);
        match answer.unwrap_or_else(Replies::outcome).read_unary().await {
            (Some(message), outcome) if outcome.is_ok() => Ok(message),
            (_, outcome) => Err(outcome),
        }
    }

    /// Keeps what is to be kept.
    async fn save(&self, node: &NodeId, settles: bool) {
        let Some(store) = &self.store else { return };
        let Some((record, as_of)) = self.cache().take_save(node, settles) else { return };
        let saved = store.save(node, Some(record)).await;
        self.cache().saved(node, as_of, saved.is_ok());
        match saved {
            Ok(()) => {
                tracing::debug!(driver = %self.driver, %node, "what the driver offers is kept for the next start");
            }
            Err(error) => {
                tracing::warn!(driver = %self.driver, %error, "what the driver offers could not be kept for the next start; trying again");
            }
        }
        self.learnt.send_replace(());
    }

    /// Keeps the time up to which what is known was true.
    pub(crate) async fn settle(&self) {
        let nodes: Vec<_> = self.look(|cache| cache.entries().map(|(node, _)| node.clone()).collect());
        let settled = async {
            for node in &nodes {
                self.save(node, true).await;
            }
        };
        let _ = timeout(PATIENCE, settled).await;
    }

    /// How the answers stand.
    pub(crate) fn status(&self, of: Option<&NodeId>) -> Status {
        self.look(|cache| cache.status(of, SystemTime::now()))
    }

    fn tell(&self, node: &NodeId, news: News) {
        let driver = &self.driver;
        match news {
            News::ForeignName { found } => tracing::warn!(
                %driver, %node, %found,
                "the driver's GetPluginInfo gives another name than this endpoint was given; sidecars are told the latter"
            ),
            News::Unreachable(outcome) => tracing::warn!(
                %driver, %node, code = %outcome.code, message = %outcome.loggable(),
                "the driver cannot be reached; sidecars are told that it is not ready"
            ),
            News::TooMany => tracing::error!(
                %node,
                max = super::MAX_NODES,
                "too many nodes for one route; this one and further ones are left out"
            ),
            News::Reached => tracing::info!(%driver, %node, "the driver is reached"),
            News::Moved { before, now } => tracing::warn!(
                %node, before = ?before.segments, now = ?now.segments,
                "a node says that it is somewhere else than before; volumes that were made there may be out of reach for pods"
            ),
        }
    }

    /// Says once that an answer is given while the driver cannot be asked, and how old it is.
    fn tell_stale(&self, of: Option<&NodeId>) {
        let Status { reached, age: Some(age), .. } = self.status(of) else { return };
        if reached == Some(true) {
            return;
        }
        #[cfg(feature = "metrics")]
        crate::metrics::stale_answer(&self.driver);
        if !self.cache().says_stale(of) {
            return;
        }
        let (driver, age) = (&self.driver, Duration::from_secs(age.as_secs()));
        if reached.is_some() {
            tracing::warn!(%driver, ?age, "answering sidecars with what the driver said when it was last reached");
        } else {
            tracing::info!(%driver, ?age, "answering sidecars with what was kept of the driver, which is being asked");
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// tokio's clock, which tests stop.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl fmt::Debug for DriverInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverInfo").field("driver", &self.driver).finish_non_exhaustive()
    }
}

/// A look at what an endpoint answers by itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    drivers: Arc<DriverInfo>,
    of: Option<NodeId>,
}

impl View {
    pub(crate) fn new(drivers: Arc<DriverInfo>, of: Option<NodeId>) -> Self {
        Self { drivers, of }
    }

    /// How they stand now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.drivers.status(self.of.as_ref())
    }
}
