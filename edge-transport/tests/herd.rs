//! Many agents that reconnect at the same moment.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::{HubSettings, PeerSettings};
use edge_transport::hub::Rules;
use edge_transport::link::memory;
use edge_transport::link::{DialOptions, Dialer, Link, LinkError};
use edge_transport::token::{Token, TokenRefused, TokenVerifier};
use edge_transport::{CallError, Hub, Peer, PeerId, PeerState, Reason, ReplyEvent, ReplySender, Service};
use session_common::{echo, peer_id, service_name};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const AGENTS: usize = 100;
/// Calls queued at each agent.
const CALLS: usize = 1000;
/// Calls queued for each agent.
const CALLS_TO_EACH: usize = 200;

/// Dials the current hub, if there is one. After a restart, the same dialers reach the new hub.
#[derive(Clone)]
struct HubDialer {
    hub: Arc<watch::Sender<Option<Arc<dyn Dialer>>>>,
    /// Attempts wait for the hub, so that all of them reach it at the same moment.
    waits_for_hub: bool,
}

#[async_trait::async_trait]
impl Dialer for HubDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let mut hub = self.hub.subscribe();
        let dialer = match self.waits_for_hub {
            true => hub.wait_for(Option::is_some).await.unwrap().clone(),
            false => hub.borrow_and_update().clone(),
        };
        dialer.ok_or(LinkError::Lost)?.dial().await
    }

    fn address(&self) -> &str {
        "memory:hub"
    }
}

/// Accepts every token after a delay, and records how many are verified at once.
#[derive(Clone)]
struct SlowVerifier {
    time: Duration,
    in_progress: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl TokenVerifier for SlowVerifier {
    async fn check(&self, _: &PeerId, _: &Token) -> Result<(), TokenRefused> {
        self.most.fetch_max(self.in_progress.fetch_add(1, SeqCst) + 1, SeqCst);
        if !self.time.is_zero() {
            sleep(self.time).await;
        }
        self.in_progress.fetch_sub(1, SeqCst);
        Ok(())
    }
}

fn settings() -> HubSettings {
    let mut settings = HubSettings::default();
    settings.max_handshakes = 4;
    settings.handshake_backlog = 8;
    settings
}

impl HubDialer {
    fn new(waits_for_hub: bool) -> Self {
        Self { hub: Arc::new(watch::Sender::new(None)), waits_for_hub }
    }

    /// Starts a hub. Returns it with the highest number of concurrent handshakes.
    fn open(&self, time: Duration, settings: HubSettings) -> (Hub, Arc<AtomicUsize>) {
        let (listener, dialer) = memory::listen("hub", 16 << 20);
        let slow = SlowVerifier { time, in_progress: Arc::default(), most: Arc::default() };
        let most = Arc::clone(&slow.most);
        let builder = Hub::builder().listener(listener).settings(settings).policy(Rules::allow_all());
        let hub = builder.token_verifier(slow).start().unwrap();
        self.hub.send_replace(Some(dialer));
        (hub, most)
    }

    fn agent(&self, index: usize, service: impl Service) -> Peer {
        let mut settings = PeerSettings::default();
        settings.dial_timeout = Duration::from_secs(600);
        // Peers with one token share a limit.
        let token = Token::new(format!("token-of-agent-{index:04}")).unwrap();
        Peer::builder(peer_id(&format!("agent-{index}")))
            .dialer(DialOptions::default().token(token).with_token(Box::new(self.clone())))
            .service(service_name("echo"), service)
            .settings(settings)
            .seed(index as u64)
            .start()
            .unwrap()
    }
}

/// Replies at once, counts the calls, and records the most bytes queued at the hub.
#[derive(Clone, Default)]
struct Counting {
    calls: Arc<AtomicU64>,
    hub: Arc<OnceLock<Hub>>,
    most: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Service for Counting {
    async fn call(&self, _source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        self.calls.fetch_add(1, SeqCst);
        self.most.fetch_max(self.hub.get().map_or(0, |hub| hub.stats().queued_bytes), SeqCst);
        let _ = replies.send_and_finish(request.body, Bytes::new()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_agents_retry_and_connect_soon() {
    let hub_dialer = HubDialer::new(false);
    let agents: Vec<_> = (0..AGENTS).map(|index| hub_dialer.agent(index, Counting::default())).collect();
    // All agents retry with growing delays.
    sleep(Duration::from_secs(60)).await;
    let (hub, most) = hub_dialer.open(Duration::from_millis(20), settings());
    let before = Instant::now();
    for agent in &agents {
        timeout(Duration::from_secs(120), agent.connected()).await.unwrap().unwrap();
    }
    assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
    assert_eq!(hub.stats().peers, AGENTS);
    assert!(most.load(SeqCst) <= 4, "{most:?} handshakes at once");

    // All agents lose the hub at the same moment and reconnect: most are rejected at first, with the reason.
    hub.close().await;
    let states: Vec<_> = agents.iter().map(Peer::watch).collect();
    let refused = states.into_iter().map(|mut state| {
        tokio::spawn(async move {
            loop {
                if let PeerState::Connecting { last_error: Some(error), .. } = &*state.borrow_and_update()
                    && error.contains("try again later")
                {
                    return error.clone();
                }
                state.changed().await.unwrap();
            }
        })
    });
    let refused: Vec<_> = refused.collect();
    let (hub, most) = hub_dialer.open(Duration::from_millis(200), settings());
    let before = Instant::now();
    for agent in &agents {
        timeout(Duration::from_secs(120), agent.connected()).await.unwrap().unwrap();
    }
    // A hundred handshakes of 200 ms, four at a time, take 5 s; the delays in between may at most double that.
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
    assert!(most.load(SeqCst) <= 4, "{most:?} handshakes at once");
    assert!(hub.stats().rejected > 0, "{:?}", hub.stats());
    assert_eq!(hub.stats().failed_handshakes, 0, "no peer timed out");
    let (mut rejected, mut of) = (0, 0);
    for task in refused {
        of += 1;
        if task.is_finished() {
            rejected += 1;
            let text = task.await.unwrap();
            assert!(text.contains("the handshake backlog reached its limit of 8"), "{text}");
        }
    }
    assert!(rejected > AGENTS / 4, "{rejected} of {of} were rejected");
}

/// The agents whose calls were answered, in order.
type Order = Arc<std::sync::Mutex<Vec<usize>>>;

/// How the calls of one agent ended.
#[derive(Debug, Default, Clone, Copy)]
struct Ends {
    answered: usize,
    refused: usize,
}

/// Makes all calls at once and counts their ends; `order` notes each answered call.
async fn flood(caller: Peer, target: String, count: usize, order: Order, index: usize) -> Ends {
    caller.connected().await.unwrap();
    let mut calls = JoinSet::new();
    for number in 0..count {
        let (caller, target, order) = (caller.clone(), target.clone(), Arc::clone(&order));
        calls.spawn(async move {
            let body = format!("{index}.{number}");
            let mut replies = match caller.call(peer_id(&target), echo(body.clone())).await {
                Ok(replies) => replies,
                Err(CallError::NotConnected { .. }) => return Err(Reason::PeerOffline),
                Err(error) => panic!("{error}"),
            };
            match replies.next().await.unwrap() {
                Ok(ReplyEvent::Message(message)) => assert_eq!(message, Bytes::from(body)),
                Ok(other) => panic!("{other:?}"),
                Err(failure) => return Err(failure.reason()),
            }
            order.lock().unwrap().push(index);
            Ok(())
        });
    }
    let mut ends = Ends::default();
    while let Some(end) = calls.join_next().await {
        match end.unwrap() {
            Ok(()) => ends.answered += 1,
            // A caller may retry these; any other reason would be final.
            Err(Reason::Overloaded | Reason::LinkLost | Reason::PeerOffline | Reason::Draining) => {
                ends.refused += 1;
            }
            Err(other) => panic!("agent {index}: {other:?}"),
        }
    }
    ends
}

/// The share of the slowest agent among the first half of all replies, relative to an equal share.
fn fairness(order: &[usize]) -> f64 {
    let half = &order[..order.len() / 2];
    let mut of_each = [0_usize; AGENTS];
    half.iter().for_each(|index| of_each[*index] += 1);
    let least = of_each.iter().min().copied().unwrap_or(0);
    (least * AGENTS) as f64 / half.len() as f64
}

/// Calls of the agents: 100 agents reconnect together, each with 1,000 queued calls.
#[tokio::test(start_paused = true)]
async fn queued_calls_of_many_agents_are_served_fairly() {
    let hub_dialer = HubDialer::new(true);
    let counting = Counting::default();
    let order = Order::default();
    let mut floods = JoinSet::new();
    // Started before its callers, so that its service is available early.
    let cloud = hub_dialer.agent(AGENTS, counting.clone());
    let mut agents = Vec::new();
    for index in 0..AGENTS {
        let agent = hub_dialer.agent(index, Counting::default());
        agents.push(agent.clone());
        floods.spawn(flood(agent, format!("agent-{AGENTS}"), CALLS, Arc::clone(&order), index));
    }
    sleep(Duration::from_secs(5)).await;
    let mut bounds = HubSettings::default();
    bounds.total_queue_bytes = 1 << 20;
    let (hub, _) = hub_dialer.open(Duration::ZERO, bounds.clone());
    assert!(counting.hub.set(hub.clone()).is_ok());
    cloud.connected().await.unwrap();
    let ends = ends_of(floods, CALLS).await;
    // Agents that have disconnected report their results last.
    sleep(Duration::from_secs(1)).await;

    assert!(counting.most.load(SeqCst) <= bounds.total_queue_bytes, "{:?} bytes queued", counting.most);
    assert_eq!((hub.stats().open_calls, hub.stats().queued_bytes), (0, 0));
    assert_eq!(hub.stats().peers, AGENTS + 1, "no link was lost");
    let order = order.lock().unwrap();
    assert!(fairness(&order) > 0.5, "share of the slowest in the first half: {}", fairness(&order));
    let least = ends.iter().map(|ends| ends.answered).min().unwrap();
    assert!(least * AGENTS * 2 > order.len(), "the slowest got {least} of {} answers", order.len());
}

/// The ends of all calls; each call has one.
async fn ends_of(mut floods: JoinSet<Ends>, count: usize) -> Vec<Ends> {
    let mut ends = Vec::new();
    while let Some(end) = timeout(Duration::from_secs(600), floods.join_next()).await.unwrap() {
        let end = end.unwrap();
        assert_eq!(end.answered + end.refused, count);
        ends.push(end);
    }
    assert_eq!(ends.len(), AGENTS);
    ends
}

/// Calls to the agents: 1,000 calls are queued for each of 100 agents that reconnect together.
#[tokio::test(start_paused = true)]
async fn queued_calls_for_many_agents_are_delivered_fairly() {
    let hub_dialer = HubDialer::new(true);
    let counting = Counting::default();
    let agents: Vec<_> = (0..AGENTS).map(|index| hub_dialer.agent(index, counting.clone())).collect();
    let order = Order::default();
    let mut floods = JoinSet::new();
    for index in 0..AGENTS {
        // A proxy for each node, which connects after the nodes.
        let proxy = hub_dialer.agent(AGENTS + index, Counting::default());
        floods.spawn(flood(proxy, format!("agent-{index}"), CALLS_TO_EACH, Arc::clone(&order), index));
    }
    sleep(Duration::from_secs(5)).await;
    let bounds = HubSettings::default();
    let (hub, _) = hub_dialer.open(Duration::ZERO, bounds.clone());
    assert!(counting.hub.set(hub.clone()).is_ok());
    for agent in &agents {
        agent.connected().await.unwrap();
    }
    ends_of(floods, CALLS_TO_EACH).await;
    // Agents that have disconnected report their results last.
    sleep(Duration::from_secs(1)).await;

    assert!(counting.most.load(SeqCst) <= bounds.total_queue_bytes, "{:?} bytes queued", counting.most);
    assert_eq!((hub.stats().open_calls, hub.stats().queued_bytes), (0, 0));
    let order = order.lock().unwrap();
    assert!(fairness(&order) > 0.5, "share of the slowest in the first half: {}", fairness(&order));
    assert_eq!(order.len(), AGENTS * CALLS_TO_EACH, "nothing is full");
}
