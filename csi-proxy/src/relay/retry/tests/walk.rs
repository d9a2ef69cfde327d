//! Random walks: a node and a hub that disconnect and reconnect, calls meanwhile, and invariants of every result.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;

const RUNS: u64 = 150;

/// The true state of the hub connection and the session of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Net {
    hub: bool,
    session: Option<NodeSession>,
}

struct Far {
    net: watch::Sender<Net>,
    rng: StdMutex<Rng>,
    log: StdMutex<Log>,
}

#[derive(Default)]
struct Log {
    /// The instances at which a call may have begun.
    begun: BTreeMap<CallId, BTreeSet<u64>>,
    numbers: BTreeMap<CallId, u64>,
    attempts: BTreeMap<CallId, u32>,
    problems: Vec<String>,
}

impl Far {
    fn draw(&self, below: u64) -> u64 {
        self.rng.lock().unwrap().u64(..below)
    }

    fn check(&self, call: &Call) {
        let mut log = self.log.lock().unwrap();
        let fence = call.fence.clone().unwrap();
        let number = fence.number().get();
        let first = *log.numbers.entry(call.id).or_insert(number);
        if first != number {
            log.problems.push(format!("{}: number {first}, then {number}", call.id));
        }
        *log.attempts.entry(call.id).or_default() += 1;
    }

    fn begins(&self, call: &Call, instance: u64) {
        let mut log = self.log.lock().unwrap();
        let instances = log.begun.entry(call.id).or_default();
        instances.insert(instance);
        if instances.len() > 1 {
            log.problems.push(format!("{} may have begun at two instances", call.id));
        }
    }
}

#[async_trait]
impl Relay for Arc<Far> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        self.check(&call);
        let mut net = self.net.subscribe();
        let Net { hub, session } = *net.borrow_and_update();
        if !hub {
            return Err(Fault::HubUnreachable { reason: "away".to_owned() });
        }
        let Some(session) = session else { return Err(offline()) };
        if call.session != Some(session) {
            return Err(Fault::WrongSession { node: node() });
        }
        tokio::select! {
            () = sleep(Duration::from_millis(self.draw(40))) => {}
            _ = net.changed() => return Err(if self.draw(2) == 0 { offline() } else {
                self.begins(&call, session.instance);
                lost()
            }),
        }
        self.begins(&call, session.instance);
        tokio::select! {
            () = sleep(Duration::from_millis(self.draw(4000))) => Ok(Replies::unary(call.body, Outcome::ok())),
            _ = net.changed() => Err(lost()),
        }
    }
}

/// The kind of injected faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// Each outage is shorter than the grace, at least two minutes apart, and the agent does not restart.
    Short,
    /// Arbitrary outages.
    Any,
}

struct Walk {
    far: Arc<Far>,
    relay: RetryRelay<Arc<Far>>,
    hub: HubPresence,
    faults: Faults,
}

impl Walk {
    async fn new(seed: u64, faults: Faults) -> Self {
        let net = watch::Sender::new(Net { hub: true, session: Some(session(1, 1)) });
        let far = Arc::new(Far { net, rng: StdMutex::new(Rng::with_seed(seed)), log: StdMutex::default() });
        let reachability = Reachability::new(GRACE);
        let hub = reachability.add_hub();
        hub.connected();
        hub.node_up(&node(), session(1, 1));
        hub.synced();
        let terms = ClockTerms::default();
        let relay = RetryRelay::start(Arc::clone(&far), reachability, terms).await.unwrap();
        Self { far, relay, hub, faults }
    }

    /// Delays the presence report.
    async fn lag(&self) {
        sleep(Duration::from_millis(self.far.draw(30))).await;
    }

    async fn outage(&self) {
        let kind = self.far.draw(3);
        let millis = match self.faults {
            Faults::Short => 500 + self.far.draw(3500),
            Faults::Any => self.far.draw(if self.far.draw(4) == 0 { 60_000 } else { 3000 }),
        };
        let Some(before) = self.far.net.borrow().session else { return };
        let mut after = NodeSession { number: before.number + 1, ..before };
        if self.faults == Faults::Any && self.far.draw(4) == 0 {
            after = session(before.instance + 1, 1);
        }
        if kind == 0 {
            // The hub restarts, and the node's link is lost with it.
            self.far.net.send_replace(Net { hub: false, session: None });
            self.lag().await;
            self.hub.lost();
            sleep(Duration::from_millis(millis / 2)).await;
            self.far.net.send_replace(Net { hub: true, session: None });
            self.lag().await;
            self.hub.connected();
            self.hub.node_down(&node(), before);
            self.hub.synced();
            sleep(Duration::from_millis(millis / 2)).await;
        } else {
            self.far.net.send_modify(|net| net.session = None);
            self.lag().await;
            self.hub.node_down(&node(), before);
            sleep(Duration::from_millis(millis)).await;
        }
        self.far.net.send_modify(|net| net.session = Some(after));
        self.lag().await;
        self.hub.node_up(&node(), after);
    }

    async fn call(&self, number: u64) -> (CallId, bool, Result<(), Fault>) {
        let repeatable = self.far.draw(4) > 0;
        let call = match repeatable {
            false => unreadable(),
            true if self.far.draw(3) == 0 => call(Method::ListVolumes, ""),
            true => create(&format!("pvc-{number}")),
        };
        let id = call.id;
        let call = call.with_remaining(Duration::from_secs(120));
        let result = match self.relay.relay(call).await {
            Ok(replies) => {
                assert!(replies.collect().await.1.is_ok());
                Ok(())
            }
            Err(error) => Err(error),
        };
        (id, repeatable, result)
    }

    async fn run(&self) -> Result<u64, String> {
        let outages = async {
            for _ in 0..4 {
                sleep(Duration::from_millis(3000 + self.far.draw(4000))).await;
                self.outage().await;
                let rest = if self.faults == Faults::Short { 120 } else { self.far.draw(20) };
                sleep(Duration::from_secs(rest)).await;
            }
        };
        let calls = async {
            let calls = (0..40).map(|number| async move {
                // In bursts, so that some calls are open at every outage.
                let spread = if self.faults == Faults::Short { 130_000 } else { 15_000 };
                sleep(Duration::from_millis(number / 10 * spread + self.far.draw(9000))).await;
                self.call(number).await
            });
            futures_util::future::join_all(calls).await
        };
        let ((), ends) = tokio::join!(outages, calls);
        let log = self.far.log.lock().unwrap();
        if let Some(problem) = log.problems.first() {
            return Err(problem.clone());
        }
        let mut repeated = 0;
        for (id, repeatable, result) in ends {
            let begun = log.begun.contains_key(&id);
            repeated += u64::from(log.attempts.get(&id).is_some_and(|attempts| *attempts > 1));
            match result {
                Ok(()) => {}
                Err(fault) if fault.delivery() == Delivery::NotSent && begun => {
                    return Err(format!("{id} may have begun and ended with {fault:?}"));
                }
                Err(fault) if self.faults == Faults::Short && (repeatable || !begun) => {
                    return Err(format!("{id} is lost: {fault:?}"));
                }
                Err(_) => {}
            }
        }
        Ok(repeated)
    }
}

async fn walks(faults: Faults) {
    let seeds = match std::env::var("RETRY_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 1..RUNS + 1,
    };
    let mut repeated = 0;
    for seed in seeds {
        match Walk::new(seed, faults).await.run().await {
            Ok(more) => repeated += more,
            Err(problem) => {
                panic!("{problem}\nRETRY_SEED={seed} cargo test -p csi-proxy --lib relay::retry::tests::walk")
            }
        }
    }
    assert!(repeated > 0, "the walk must retry some calls");
}

#[tokio::test(start_paused = true)]
async fn no_call_is_lost_within_the_grace() {
    walks(Faults::Short).await;
}

#[tokio::test(start_paused = true)]
async fn sent_call_is_never_reported_as_not_sent() {
    walks(Faults::Any).await;
}
