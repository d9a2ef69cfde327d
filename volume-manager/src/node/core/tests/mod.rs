//! The core, with drivers whose responses the test controls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::{DriverName, VolumeId};

use super::*;
use crate::driver::{
    Access, AccessMode, Attach, CallError, CallOutcome, ConsumerSpec, Operation, VolumeSpec,
};
use crate::message::MAX_CONSUMERS;
use crate::mounts::{Inspection, PathState};
use crate::store::memory::MemoryDisk;
use crate::store::{Loaded, Store};

mod lost_mounts;
mod records;

const SECOND: Duration = Duration::from_secs(1);

/// A request of a test.
enum Ask {
    Publish { spec: Arc<VolumeSpec>, consumer: Arc<ConsumerSpec> },
    Unpublish { key: VolumeKey, consumer: ConsumerId },
    Expand { key: VolumeKey, required_bytes: u64 },
    Reconcile(Vec<crate::node::DesiredVolume>),
    Stats(VolumeKey),
}

/// A received reply.
#[derive(Debug)]
enum Answer {
    Published(Result<crate::node::Published, crate::node::PublishError>),
    Unpublished(Result<(), crate::node::UnpublishError>),
    Expanded,
    Reconciled(Result<crate::node::Reconciled, crate::node::ReconcileError>),
    Inspected(Result<CallOutcome, crate::node::InspectError>),
}

/// The received replies and the abandoned requests.
#[derive(Debug, Default)]
struct Replies {
    answered: Vec<(u64, Answer)>,
    abandoned: Vec<u64>,
}

struct ReplyHandle<T> {
    request: u64,
    replies: Arc<Mutex<Replies>>,
    answer: fn(T) -> Answer,
}

impl<T> ReplyTo<T> for ReplyHandle<T> {
    fn answer(self: Box<Self>, answer: T) {
        let mut replies = self.replies.lock().unwrap();
        if !replies.abandoned.contains(&self.request) {
            replies.answered.push((self.request, (self.answer)(answer)));
        }
    }

    fn is_closed(&self) -> bool {
        self.replies.lock().unwrap().abandoned.contains(&self.request)
    }
}

/// A core whose checks observe the expected state, and whose commits succeed at once unless they are held.
struct Harness {
    node: Node,
    store: Store,
    hold_commits: bool,
    hold_checks: bool,
    held_checks: Vec<Slot>,
    held: Vec<Vec<crate::store::Change>>,
    calls: Vec<CallOrder>,
    replies: Arc<Mutex<Replies>>,
    answers: BTreeMap<u64, Answer>,
    requests: u64,
    commits: usize,
    checks: usize,
    reads: usize,
}

fn name(driver: &str) -> DriverName {
    DriverName::new(driver).unwrap()
}

fn spec(driver: &str, id: &str) -> Arc<VolumeSpec> {
    let key = VolumeKey { driver: name(driver), id: VolumeId::new(id).unwrap() };
    let builder = VolumeSpec::builder(key, Access::filesystem(), AccessMode::SingleNodeWriter);
    Arc::new(builder.attach(Attach::NotRequired).build().unwrap())
}

fn consumer(id: &str) -> Arc<ConsumerSpec> {
    let target = MountPath::new(format!("/pods/{id}/mount")).unwrap();
    Arc::new(ConsumerSpec::new(ConsumerId::new(id).unwrap(), target))
}

impl Harness {
    fn new(settings: VolumeSettings) -> Self {
        let boot = "00000000-0000-0000-0000-000000000001".parse().unwrap();
        // A directory is enough as a target: mounts are tested elsewhere.
        let settings = settings.require_mounted_targets(false);
        let (node, actions) = Node::open(settings, boot, Loaded::default(), Arc::default());
        assert!(actions.is_empty());
        Self {
            node,
            store: MemoryDisk::default().open(),
            hold_commits: false,
            hold_checks: false,
            held_checks: Vec::new(),
            held: Vec::new(),
            calls: Vec::new(),
            replies: Arc::default(),
            answers: BTreeMap::new(),
            requests: 0,
            commits: 0,
            checks: 0,
            reads: 0,
        }
    }

    fn step(&mut self, event: Event, now: Duration) {
        let mut actions = std::collections::VecDeque::from(self.node.step(event, now));
        while let Some(action) = actions.pop_front() {
            let event = match action {
                Action::Commit(changes) if self.hold_commits => {
                    self.held.push(changes);
                    continue;
                }
                Action::Commit(changes) => {
                    self.commits += 1;
                    Event::Committed(self.store.commit(&changes).map_err(|error| CommitFailure::of(&error)))
                }
                Action::Check { slot, .. } if self.hold_checks => {
                    self.held_checks.push(slot);
                    continue;
                }
                Action::Check { slot, check } => Event::Checked { slot, observed: Ok(self.observe(&check)) },
                Action::Call(order) => {
                    self.calls.push(order);
                    continue;
                }
                Action::Answer(answer) => {
                    answer.deliver();
                    for (request, answer) in self.replies.lock().unwrap().answered.drain(..) {
                        assert!(self.answers.insert(request, answer).is_none(), "answered twice");
                    }
                    continue;
                }
                Action::Notify(_) | Action::RemoveEmpty(_) => continue,
                Action::ReadTable => {
                    self.reads += 1;
                    continue;
                }
                Action::Reopen => Event::Reopened(Ok(())),
            };
            actions.extend(self.node.step(event, now));
        }
    }

    fn observe(&mut self, check: &PathCheck) -> Observation {
        self.checks += 1;
        let is_staging = check.path.ends_with("staging");
        let presence = if is_staging { PathState::Missing } else { PathState::Directory };
        let inspection = (check.inspect != Inspect::Never).then(|| Inspection::of(presence));
        Observation { table: Arc::default(), inspection }
    }

    fn release(&mut self, now: Duration) {
        let changes = self.held.remove(0);
        self.store.commit(&changes).unwrap();
        self.step(Event::Committed(Ok(())), now);
    }

    fn ask(&mut self, ask: Ask, now: Duration) -> u64 {
        self.requests += 1;
        let request = match ask {
            Ask::Publish { spec, consumer } => {
                Request::Publish { spec, consumer, reply: self.reply(Answer::Published) }
            }
            Ask::Unpublish { key, consumer } => {
                Request::Unpublish { key, consumer, reply: self.reply(Answer::Unpublished) }
            }
            Ask::Expand { key, required_bytes } => {
                Request::Expand { key, required_bytes, reply: self.reply(|_| Answer::Expanded) }
            }
            Ask::Reconcile(desired) => Request::Reconcile { desired, reply: self.reply(Answer::Reconciled) },
            Ask::Stats(key) => {
                Request::Inspect { key, query: Query::Stats, reply: self.reply(Answer::Inspected) }
            }
        };
        self.step(Event::Request(request), now);
        self.requests
    }

    fn reply<T: Send + 'static>(&self, answer: fn(T) -> Answer) -> Reply<T> {
        Reply::new(ReplyHandle { request: self.requests, replies: Arc::clone(&self.replies), answer })
    }

    /// Abandons a request.
    fn abandon(&mut self, request: u64) {
        self.replies.lock().unwrap().abandoned.push(request);
    }

    fn publish(&mut self, driver: &str, id: &str, now: Duration) -> u64 {
        let consumer = consumer(&format!("{driver}-{id}"));
        self.ask(Ask::Publish { spec: spec(driver, id), consumer }, now)
    }

    fn connect(&mut self, driver: &str, now: Duration) {
        let mut facts = DriverFacts::new(name(driver));
        facts.capabilities.node.stage_unstage = true;
        self.step(Event::DriverRegistered { driver: name(driver), policy: DriverPolicy::default() }, now);
        self.step(Event::DriverConnected { facts: Box::new(facts), earlier_processes_ended: true }, now);
    }

    /// Takes the open calls of a driver.
    fn calls_of(&mut self, driver: &str) -> Vec<CallOrder> {
        let driver = name(driver);
        self.calls.extract_if(.., |order| order.spec.key().driver == driver).collect()
    }

    fn end(&mut self, order: &CallOrder, result: Result<CallOutcome, CallError>, now: Duration) {
        let check = order.verify.as_ref().filter(|_| result.is_ok());
        let observed = check.map(|check| Ok(self.observe(check)));
        self.step(Event::CallEnded { slot: order.slot, result, observed }, now);
    }

    /// Completes every call with OK until the volume is published.
    fn until_published(&mut self, request: u64) {
        while !self.is_published(request) {
            let order = self.calls.remove(0);
            self.end(&order, Ok(CallOutcome::Done), SECOND);
        }
    }

    fn entry(&mut self, id: &str) -> &mut Entry {
        let slot = self.node.by_key[spec("d", id).key()];
        self.node.volumes.get_mut(&slot).unwrap()
    }

    fn unpublish(&mut self, id: &str) -> u64 {
        let consumer = ConsumerId::new(&format!("d-{id}")).unwrap();
        self.ask(Ask::Unpublish { key: spec("d", id).key().clone(), consumer }, SECOND)
    }

    fn is_published(&self, request: u64) -> bool {
        matches!(self.answers.get(&request), Some(Answer::Published(Ok(_))))
    }
}

/// A hung driver occupies its maximum number of calls and does not delay other drivers.
#[test]
fn hung_driver_does_not_delay_another() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes").calls_per_driver(3));
    for driver in ["slow", "fast"] {
        harness.connect(driver, SECOND);
    }
    for number in 0..50 {
        harness.publish("slow", &number.to_string(), SECOND);
    }
    assert_eq!(harness.calls_of("slow").len(), 3);
    let published: Vec<_> =
        (0..50).map(|number| harness.publish("fast", &number.to_string(), SECOND)).collect();
    loop {
        let ready = harness.calls_of("fast");
        if ready.is_empty() {
            break;
        }
        for order in ready {
            harness.end(&order, Ok(CallOutcome::Done), SECOND);
        }
    }
    assert!(published.iter().all(|request| harness.is_published(*request)));
    assert!(harness.calls_of("slow").is_empty(), "no further call of the hung driver");
}

/// The volumes of a driver are served in FIFO order, and a volume that fails repeatedly is queued behind those that
/// wait.
#[test]
fn failing_volume_is_queued_behind_waiting_ones() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes").calls_per_driver(2));
    harness.connect("d", SECOND);
    let requests: Vec<_> =
        (0..20).map(|number| harness.publish("d", &format!("{number:02}"), SECOND)).collect();
    let mut staged = Vec::new();
    let mut now = SECOND;
    while requests.iter().any(|request| !harness.is_published(*request)) {
        let order = harness.calls.remove(0);
        let id = order.spec.key().id.as_str().to_owned();
        if matches!(order.operation, Operation::NodeStage { .. }) && !staged.contains(&id) {
            staged.push(id.clone());
        }
        let method = order.operation.method();
        let result = if id == "00" && staged.len() < 20 {
            Err(CallError::Status { method, code: 14, message: "busy".into() })
        } else {
            Ok(CallOutcome::Done)
        };
        harness.end(&order, result, now);
        if harness.calls.is_empty() {
            now = harness.node.next_deadline().unwrap_or(now).max(now);
            harness.step(Event::Tick, now);
        }
        assert!(now < 600 * SECOND, "{:?}", harness.answers);
    }
    let order: Vec<_> = (0..20).map(|number| format!("{number:02}")).collect();
    assert_eq!(staged, order);
}

#[test]
fn query_is_serialized_with_the_calls_of_its_volume() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    while !harness.is_published(request) {
        let order = harness.calls.remove(0);
        harness.end(&order, Ok(CallOutcome::Done), SECOND);
    }
    let key = spec("d", "v").key().clone();
    let unsupported = harness.ask(Ask::Stats(key.clone()), SECOND);
    assert!(matches!(&harness.answers[&unsupported], Answer::Inspected(Err(_))), "the capability is missing");
    let facts = harness.node.drivers.get_mut(&name("d")).unwrap().facts.as_mut().unwrap();
    facts.capabilities.node.volume_stats = true;
    let stats = harness.ask(Ask::Stats(key.clone()), SECOND);
    let order = harness.calls.remove(0);
    let id = ConsumerId::new("d-v").unwrap();
    harness.ask(Ask::Unpublish { key, consumer: id }, SECOND);
    assert!(harness.calls.is_empty(), "one call at a time for a volume");
    harness.end(&order, Ok(CallOutcome::Stats(crate::driver::VolumeStats::default())), SECOND);
    assert!(matches!(&harness.answers[&stats], Answer::Inspected(Ok(_))));
    assert!(matches!(harness.calls[0].operation, Operation::NodeUnpublish { .. }));
}

#[test]
fn ids_with_the_same_hash_get_different_directories() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.publish("d", "v", SECOND);
    // Simulates another id with the same hash.
    let taken = crate::node::staging::directory_name(spec("d", "w").key(), 0);
    let slot = *harness.node.by_key.values().next().unwrap();
    harness.node.directories.insert(format!("d/{taken}").into_bytes().into(), slot);
    harness.publish("d", "w", SECOND);
    let other = harness.node.by_key[spec("d", "w").key()];
    assert_eq!(harness.node.volumes[&other].record.directory, format!("{taken}-1"));
}

/// A query that waits while the last consumer is removed fails, because no path remains, and does not delay the
/// unstage.
#[test]
fn late_query_fails_before_the_unstage() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let facts = harness.node.drivers.get_mut(&name("d")).unwrap().facts.as_mut().unwrap();
    facts.capabilities.node.volume_stats = true;
    harness.unpublish("v");
    let unpublish = harness.calls.remove(0);
    let stats = harness.ask(Ask::Stats(spec("d", "v").key().clone()), SECOND);
    harness.hold_commits = true;
    harness.end(&unpublish, Ok(CallOutcome::Done), SECOND);
    let not_mounted = crate::node::InspectError::NotMounted {
        key: spec("d", "v").key().clone(),
        state: "NODE_UNSTAGE".to_owned(),
    };
    assert!(matches!(&harness.answers[&stats], Answer::Inspected(Err(error)) if *error == not_mounted));
    assert!(harness.calls.is_empty(), "the intent is not on disk yet");
    harness.hold_commits = false;
    while !harness.held.is_empty() {
        harness.release(SECOND);
    }
    assert!(matches!(harness.calls[0].operation, Operation::NodeUnstage { .. }));
}

#[test]
fn policy_survives_a_lost_connection() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    let policy = DriverPolicy { pod_info_on_mount: true, ..DriverPolicy::default() };
    harness.step(Event::DriverRegistered { driver: name("d"), policy }, SECOND);
    let facts = || Box::new(DriverFacts::new(name("d")));
    harness.step(Event::DriverConnected { facts: facts(), earlier_processes_ended: false }, SECOND);
    harness.step(Event::DriverDisconnected(name("d")), SECOND);
    harness.step(Event::DriverConnected { facts: facts(), earlier_processes_ended: false }, SECOND);
    harness.publish("d", "v", SECOND);
    assert!(harness.node.drivers[&name("d")].policy.pod_info_on_mount);
}

/// Capabilities are read at each connection, even if an earlier process of the driver may still be running.
#[test]
fn reconnected_driver_gets_calls_it_did_not_support_before() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    harness.publish("d", "v", SECOND);
    let order = harness.calls.remove(0);
    let method = order.operation.method();
    let unimplemented = CallError::Status { method, code: 12, message: "no".into() };
    harness.end(&order, Err(unimplemented), SECOND);
    assert!(harness.calls.is_empty());
    harness.step(Event::DriverDisconnected(name("d")), SECOND);
    let mut facts = DriverFacts::new(name("d"));
    facts.capabilities.node.stage_unstage = true;
    harness.step(Event::DriverConnected { facts: Box::new(facts), earlier_processes_ended: false }, SECOND);
    assert!(matches!(harness.calls[0].operation, Operation::NodeStage { .. }), "{:?}", harness.calls);
}

#[test]
fn publish_fails_a_pending_unpublish() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let unpublish = harness.unpublish("v");
    let again = harness.publish("d", "v", SECOND);
    assert!(matches!(
        &harness.answers[&unpublish],
        Answer::Unpublished(Err(crate::node::UnpublishError::Wanted { .. }))
    ));
    harness.until_published(again);
}

#[test]
fn spec_cannot_change_during_teardown() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    harness.unpublish("v");
    let order = harness.calls.remove(0);
    harness.end(&order, Ok(CallOutcome::Done), SECOND);
    let unstage = harness.calls.remove(0);
    assert!(matches!(unstage.operation, Operation::NodeUnstage { .. }));
    let other = Arc::new(
        spec("d", "v").to_builder().volume_context([("a".to_owned(), "b".to_owned())]).build().unwrap(),
    );
    let ask = |harness: &mut Harness| {
        let (spec, consumer) = (Arc::clone(&other), consumer("d-v"));
        harness.ask(Ask::Publish { spec, consumer }, SECOND)
    };
    let early = ask(&mut harness);
    assert!(matches!(
        &harness.answers[&early],
        Answer::Published(Err(crate::node::PublishError::SpecDiffers { .. }))
    ));
    harness.end(&unstage, Ok(CallOutcome::Done), SECOND);
    let late = ask(&mut harness);
    harness.until_published(late);
}

#[test]
fn queued_unstage_is_sent_only_after_another_check() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes").calls_per_driver(1));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    harness.unpublish("v");
    let unpublish = harness.calls.remove(0);
    harness.publish("d", "w", SECOND);
    harness.end(&unpublish, Ok(CallOutcome::Done), SECOND);
    let stage = harness.calls.remove(0);
    assert!(matches!(stage.operation, Operation::NodeStage { .. }));
    let checks = harness.checks;
    harness.end(&stage, Ok(CallOutcome::Done), 3600 * SECOND);
    // One check follows the stage call, and one precedes the unstage call.
    assert_eq!(harness.checks, checks + 2);
    assert!(matches!(harness.calls[0].operation, Operation::NodeUnstage { .. }), "{:?}", harness.calls);
}

/// The outcome of a call belongs to the process that received it.
#[test]
fn unstage_goes_to_the_process_that_connected_during_its_check() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    harness.unpublish("v");
    let unpublish = harness.calls.remove(0);
    harness.hold_checks = true;
    harness.end(&unpublish, Ok(CallOutcome::Done), SECOND);
    let slot = harness.held_checks.remove(0);
    harness.connect("d", SECOND);
    assert!(harness.calls.is_empty() && harness.held_checks.is_empty(), "one job at a time");
    let observed = Ok(Observation { table: Arc::default(), inspection: None });
    harness.step(Event::Checked { slot, observed }, SECOND);
    let unstage = harness.calls.remove(0);
    let method = unstage.operation.method();
    harness.end(&unstage, Err(CallError::Broken { method, reason: "lost".into() }), SECOND);
    assert_eq!(harness.node.counts().uncertain, 1, "it may still be running");
}

/// A caller that abandons requests repeatedly does not exhaust the memory.
#[test]
fn drops_abandoned_requests() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    for _ in 0..3 {
        let request = harness.publish("d", "v", SECOND);
        harness.abandon(request);
    }
    let last = harness.publish("d", "v", SECOND);
    assert_eq!(harness.entry("v").waiters.published.len(), 1);
    harness.connect("d", SECOND);
    harness.until_published(last);
    assert_eq!(harness.answers.len(), 1);
}

#[test]
fn rejects_a_changed_consumer_spec() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let other = Arc::new(ConsumerSpec::clone(&consumer("d-v")).fs_group(5));
    let refused = harness.ask(Ask::Publish { spec: spec("d", "v"), consumer: other }, SECOND);
    assert!(matches!(
        &harness.answers[&refused],
        Answer::Published(Err(crate::node::PublishError::ConsumerDiffers { field: "fs_group", .. }))
    ));
}

#[test]
fn rejects_consumers_above_the_limit() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    let mut ask = |number: usize| {
        let consumer = consumer(&number.to_string());
        harness.ask(Ask::Publish { spec: spec("d", "v"), consumer }, SECOND)
    };
    let requests: Vec<_> = (0..=MAX_CONSUMERS).map(&mut ask).collect();
    let refused = |request: &u64| match harness.answers.get(request) {
        Some(Answer::Published(Err(crate::node::PublishError::TooManyConsumers { limit: 256, .. }))) => true,
        None => false,
        other => panic!("{other:?}"),
    };
    assert_eq!(requests.iter().position(refused), Some(MAX_CONSUMERS));
}

/// A driver whose policy no longer allows persistent volumes must still tear down existing ones.
#[test]
fn tears_down_volumes_of_an_excluded_lifecycle_mode() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let boot = "00000000-0000-0000-0000-000000000001".parse().unwrap();
    let settings = VolumeSettings::new("/volumes").require_mounted_targets(false);
    let (node, _) = Node::open(settings, boot, harness.store.load().unwrap(), Arc::default());
    harness.node = node;
    let policy = DriverPolicy { persistent: false, ephemeral: true, ..DriverPolicy::default() };
    harness.step(Event::DriverRegistered { driver: name("d"), policy }, SECOND);
    let mut facts = DriverFacts::new(name("d"));
    facts.capabilities.node.stage_unstage = true;
    harness.step(Event::DriverConnected { facts: Box::new(facts), earlier_processes_ended: false }, SECOND);
    harness.unpublish("v");
    assert!(matches!(harness.calls[0].operation, Operation::NodeUnpublish { .. }), "{:?}", harness.calls);
}
