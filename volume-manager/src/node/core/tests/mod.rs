//! The core alone, with drivers that answer when the test says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::{DriverName, VolumeId};

use super::*;
use crate::driver::{
    Access, AccessMode, Attach, CallError, CallOutcome, ConsumerSpec, Operation, VolumeSpec,
};
use crate::mounts::{Inspection, Presence};
use crate::node::settings::MAX_CONSUMERS;
use crate::store::{Loaded, Store as _, memory::MemoryStore};

mod losses;
mod records;

const SECOND: Duration = Duration::from_secs(1);

/// What is asked for in these tests.
enum Ask {
    Publish { spec: Arc<VolumeSpec>, consumer: Arc<ConsumerSpec> },
    Unpublish { key: VolumeKey, consumer: ConsumerId },
    Expand { key: VolumeKey, required_bytes: u64 },
    Reconcile(Vec<crate::node::DesiredVolume>),
    Stats(VolumeKey),
}

/// An answer as it came.
#[derive(Debug)]
enum Answer {
    Published(Result<crate::node::Published, crate::node::PublishError>),
    Unpublished(Result<(), crate::node::UnpublishError>),
    Expanded,
    Reconciled(Result<crate::node::Reconciled, crate::node::ReconcileError>),
    Inspected(Result<CallOutcome, crate::node::InspectError>),
}

/// Which requests are answered, and which are not waited for any more.
#[derive(Debug, Default)]
struct Desk {
    answered: Vec<(u64, Answer)>,
    gone: Vec<u64>,
}

struct Slip<T> {
    request: u64,
    desk: Arc<Mutex<Desk>>,
    answer: fn(T) -> Answer,
}

impl<T> ReplyTo<T> for Slip<T> {
    fn answer(self: Box<Self>, answer: T) {
        let mut desk = self.desk.lock().unwrap();
        if !desk.gone.contains(&self.request) {
            desk.answered.push((self.request, (self.answer)(answer)));
        }
    }

    fn is_closed(&self) -> bool {
        self.desk.lock().unwrap().gone.contains(&self.request)
    }
}

/// A core whose looks see what is wanted, and whose commits succeed at once unless they are held.
struct Bench {
    node: Node,
    store: MemoryStore,
    hold_commits: bool,
    hold_looks: bool,
    held_looks: Vec<Slot>,
    held: Vec<Vec<crate::store::Change>>,
    calls: Vec<CallOrder>,
    desk: Arc<Mutex<Desk>>,
    answers: BTreeMap<u64, Answer>,
    requests: u64,
    commits: usize,
    looks: usize,
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

impl Bench {
    fn new(settings: Settings) -> Self {
        let boot = "00000000-0000-0000-0000-000000000001".parse().unwrap();
        // A target that is a directory is enough: what mounts mean is tested elsewhere.
        let settings = settings.targets_are_mounts(false);
        let (node, actions) = Node::open(settings, boot, Loaded::default(), Arc::default());
        assert!(actions.is_empty());
        Self {
            node,
            store: MemoryStore::default(),
            hold_commits: false,
            hold_looks: false,
            held_looks: Vec::new(),
            held: Vec::new(),
            calls: Vec::new(),
            desk: Arc::default(),
            answers: BTreeMap::new(),
            requests: 0,
            commits: 0,
            looks: 0,
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
                Action::Look { slot, .. } if self.hold_looks => {
                    self.held_looks.push(slot);
                    continue;
                }
                Action::Look { slot, look } => Event::Looked { slot, seen: Ok(self.look(&look)) },
                Action::Call(order) => {
                    self.calls.push(order);
                    continue;
                }
                Action::Answer(answer) => {
                    answer.deliver();
                    for (request, answer) in self.desk.lock().unwrap().answered.drain(..) {
                        assert!(self.answers.insert(request, answer).is_none(), "answered twice");
                    }
                    continue;
                }
                Action::Tell(_) | Action::Clear(_) => continue,
                Action::ReadTable => {
                    self.reads += 1;
                    continue;
                }
                Action::Reopen => Event::Reopened(Ok(())),
            };
            actions.extend(self.node.step(event, now));
        }
    }

    fn look(&mut self, look: &Look) -> Sight {
        self.looks += 1;
        let is_staging = look.path.ends_with("staging");
        let presence = if is_staging { Presence::Missing } else { Presence::Directory };
        let inspection = (look.inspect != Inspect::Never).then(|| Inspection::of(presence));
        Sight { table: Arc::default(), inspection }
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
        Reply::new(Slip { request: self.requests, desk: Arc::clone(&self.desk), answer })
    }

    /// The answer to this is not waited for any more.
    fn abandon(&mut self, request: u64) {
        self.desk.lock().unwrap().gone.push(request);
    }

    fn publish(&mut self, driver: &str, id: &str, now: Duration) -> u64 {
        let consumer = consumer(&format!("{driver}-{id}"));
        self.ask(Ask::Publish { spec: spec(driver, id), consumer }, now)
    }

    fn connect(&mut self, driver: &str, now: Duration) {
        let mut facts = DriverFacts::new(name(driver));
        facts.capabilities.node.stage_unstage = true;
        self.step(Event::DriverRegistered { driver: name(driver), policy: DriverPolicy::default() }, now);
        self.step(Event::DriverConnected { facts: Box::new(facts), predecessors_ended: true }, now);
    }

    /// Takes the calls that wait for an answer of a driver.
    fn calls_of(&mut self, driver: &str) -> Vec<CallOrder> {
        let driver = name(driver);
        self.calls.extract_if(.., |order| order.spec.key().driver == driver).collect()
    }

    fn end(&mut self, order: &CallOrder, result: Result<CallOutcome, CallError>, now: Duration) {
        let look = order.verify.as_ref().filter(|_| result.is_ok());
        let seen = look.map(|look| Ok(self.look(look)));
        self.step(Event::CallEnded { slot: order.slot, result, seen }, now);
    }

    /// Answers every call well until the volume is published.
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

/// Anchors (f) 18: a driver that never answers holds as many of its own calls as it may, and none of another driver.
#[test]
fn a_driver_that_hangs_delays_no_other_driver() {
    let mut bench = Bench::new(Settings::new("/volumes").calls_per_driver(3));
    for driver in ["slow", "fast"] {
        bench.connect(driver, SECOND);
    }
    for number in 0..50 {
        bench.publish("slow", &number.to_string(), SECOND);
    }
    assert_eq!(bench.calls_of("slow").len(), 3);
    let published: Vec<_> =
        (0..50).map(|number| bench.publish("fast", &number.to_string(), SECOND)).collect();
    loop {
        let ready = bench.calls_of("fast");
        if ready.is_empty() {
            break;
        }
        for order in ready {
            bench.end(&order, Ok(CallOutcome::Done), SECOND);
        }
    }
    assert!(published.iter().all(|request| bench.is_published(*request)));
    assert!(bench.calls_of("slow").is_empty(), "not one call more of the driver that hangs");
}

/// Anchors (f) 18: volumes of one driver are served in the order in which they came, and one that fails again and again
/// stands behind those that wait.
#[test]
fn no_volume_of_a_driver_is_served_twice_while_another_waits() {
    let mut bench = Bench::new(Settings::new("/volumes").calls_per_driver(2));
    bench.connect("d", SECOND);
    let requests: Vec<_> =
        (0..20).map(|number| bench.publish("d", &format!("{number:02}"), SECOND)).collect();
    let mut staged = Vec::new();
    let mut now = SECOND;
    while requests.iter().any(|request| !bench.is_published(*request)) {
        let order = bench.calls.remove(0);
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
        bench.end(&order, result, now);
        if bench.calls.is_empty() {
            now = bench.node.next_deadline().unwrap_or(now).max(now);
            bench.step(Event::Tick, now);
        }
        assert!(now < 600 * SECOND, "{:?}", bench.answers);
    }
    let order: Vec<_> = (0..20).map(|number| format!("{number:02}")).collect();
    assert_eq!(staged, order);
}

#[test]
fn a_question_takes_its_turn_with_the_calls_of_its_volume() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    while !bench.is_published(request) {
        let order = bench.calls.remove(0);
        bench.end(&order, Ok(CallOutcome::Done), SECOND);
    }
    let key = spec("d", "v").key().clone();
    let unsupported = bench.ask(Ask::Stats(key.clone()), SECOND);
    assert!(matches!(&bench.answers[&unsupported], Answer::Inspected(Err(_))), "it has no such capability");
    let facts = bench.node.drivers.get_mut(&name("d")).unwrap().facts.as_mut().unwrap();
    facts.capabilities.node.volume_stats = true;
    let stats = bench.ask(Ask::Stats(key.clone()), SECOND);
    let order = bench.calls.remove(0);
    let id = ConsumerId::new("d-v").unwrap();
    bench.ask(Ask::Unpublish { key, consumer: id }, SECOND);
    assert!(bench.calls.is_empty(), "one call at a time for a volume");
    bench.end(&order, Ok(CallOutcome::Stats(crate::driver::VolumeStats::default())), SECOND);
    assert!(matches!(&bench.answers[&stats], Answer::Inspected(Ok(_))));
    assert!(matches!(bench.calls[0].operation, Operation::NodeUnpublish { .. }));
}

#[test]
fn two_ids_that_share_a_hash_get_directories_of_their_own() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.publish("d", "v", SECOND);
    // As if another id had the same hash.
    let taken = crate::node::staging::directory_name(spec("d", "w").key(), 0);
    let slot = *bench.node.by_key.values().next().unwrap();
    bench.node.directories.insert(format!("d/{taken}").into_bytes().into(), slot);
    bench.publish("d", "w", SECOND);
    let other = bench.node.by_key[spec("d", "w").key()];
    assert_eq!(bench.node.volumes[&other].record.directory, format!("{taken}-1"));
}

/// The last consumer goes while a question waits: there is no path to ask about any more, and nothing holds up the unstage.
#[test]
fn a_question_that_comes_too_late_is_answered_before_the_unstage() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let facts = bench.node.drivers.get_mut(&name("d")).unwrap().facts.as_mut().unwrap();
    facts.capabilities.node.volume_stats = true;
    bench.unpublish("v");
    let unpublish = bench.calls.remove(0);
    let stats = bench.ask(Ask::Stats(spec("d", "v").key().clone()), SECOND);
    bench.hold_commits = true;
    bench.end(&unpublish, Ok(CallOutcome::Done), SECOND);
    let not_mounted = crate::node::InspectError::NotMounted {
        key: spec("d", "v").key().clone(),
        state: "NODE_UNSTAGE".to_owned(),
    };
    assert!(matches!(&bench.answers[&stats], Answer::Inspected(Err(error)) if *error == not_mounted));
    assert!(bench.calls.is_empty(), "the intent is not on disk yet");
    bench.hold_commits = false;
    while !bench.held.is_empty() {
        bench.release(SECOND);
    }
    assert!(matches!(bench.calls[0].operation, Operation::NodeUnstage { .. }));
}

#[test]
fn a_connection_that_breaks_leaves_the_policy_of_the_registration() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    let policy = DriverPolicy { pod_info_on_mount: true, ..DriverPolicy::default() };
    bench.step(Event::DriverRegistered { driver: name("d"), policy }, SECOND);
    let facts = || Box::new(DriverFacts::new(name("d")));
    bench.step(Event::DriverConnected { facts: facts(), predecessors_ended: false }, SECOND);
    bench.step(Event::DriverDisconnected(name("d")), SECOND);
    bench.step(Event::DriverConnected { facts: facts(), predecessors_ended: false }, SECOND);
    bench.publish("d", "v", SECOND);
    assert!(bench.node.drivers[&name("d")].policy.pod_info_on_mount);
}

/// What the driver can do is asked at each connection, also where an earlier process of it may live on.
#[test]
fn a_driver_that_comes_back_may_be_asked_for_what_it_could_not_do_before() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    bench.publish("d", "v", SECOND);
    let order = bench.calls.remove(0);
    let method = order.operation.method();
    let unimplemented = CallError::Status { method, code: 12, message: "no".into() };
    bench.end(&order, Err(unimplemented), SECOND);
    assert!(bench.calls.is_empty());
    bench.step(Event::DriverDisconnected(name("d")), SECOND);
    let mut facts = DriverFacts::new(name("d"));
    facts.capabilities.node.stage_unstage = true;
    bench.step(Event::DriverConnected { facts: Box::new(facts), predecessors_ended: false }, SECOND);
    assert!(matches!(bench.calls[0].operation, Operation::NodeStage { .. }), "{:?}", bench.calls);
}

#[test]
fn one_who_waits_for_an_unpublish_is_told_that_it_is_wanted_again() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let unpublish = bench.unpublish("v");
    let again = bench.publish("d", "v", SECOND);
    assert!(matches!(
        &bench.answers[&unpublish],
        Answer::Unpublished(Err(crate::node::UnpublishError::Wanted { .. }))
    ));
    bench.until_published(again);
}

#[test]
fn a_volume_that_is_being_taken_down_keeps_its_description() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    bench.unpublish("v");
    let order = bench.calls.remove(0);
    bench.end(&order, Ok(CallOutcome::Done), SECOND);
    let unstage = bench.calls.remove(0);
    assert!(matches!(unstage.operation, Operation::NodeUnstage { .. }));
    let other = Arc::new(
        spec("d", "v").to_builder().volume_context([("a".to_owned(), "b".to_owned())]).build().unwrap(),
    );
    let ask = |bench: &mut Bench| {
        let (spec, consumer) = (Arc::clone(&other), consumer("d-v"));
        bench.ask(Ask::Publish { spec, consumer }, SECOND)
    };
    let early = ask(&mut bench);
    assert!(matches!(
        &bench.answers[&early],
        Answer::Published(Err(crate::node::PublishError::SpecDiffers { .. }))
    ));
    bench.end(&unstage, Ok(CallOutcome::Done), SECOND);
    let late = ask(&mut bench);
    bench.until_published(late);
}

#[test]
fn an_unstage_that_stood_in_line_is_sent_only_after_another_look() {
    let mut bench = Bench::new(Settings::new("/volumes").calls_per_driver(1));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    bench.unpublish("v");
    let unpublish = bench.calls.remove(0);
    bench.publish("d", "w", SECOND);
    bench.end(&unpublish, Ok(CallOutcome::Done), SECOND);
    let stage = bench.calls.remove(0);
    assert!(matches!(stage.operation, Operation::NodeStage { .. }));
    let looks = bench.looks;
    bench.end(&stage, Ok(CallOutcome::Done), 3600 * SECOND);
    // One after the stage call, and one before the unstage call.
    assert_eq!(bench.looks, looks + 2);
    assert!(matches!(bench.calls[0].operation, Operation::NodeUnstage { .. }), "{:?}", bench.calls);
}

/// The end of a call counts as that of the process that it was sent to.
#[test]
fn an_unstage_goes_to_the_process_that_came_while_it_was_looked() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    bench.unpublish("v");
    let unpublish = bench.calls.remove(0);
    bench.hold_looks = true;
    bench.end(&unpublish, Ok(CallOutcome::Done), SECOND);
    let slot = bench.held_looks.remove(0);
    bench.connect("d", SECOND);
    assert!(bench.calls.is_empty() && bench.held_looks.is_empty(), "one job at a time");
    let seen = Ok(Sight { table: Arc::default(), inspection: None });
    bench.step(Event::Looked { slot, seen }, SECOND);
    let unstage = bench.calls.remove(0);
    let method = unstage.operation.method();
    bench.end(&unstage, Err(CallError::Broken { method, reason: "lost".into() }), SECOND);
    assert_eq!(bench.node.counts().uncertain, 1, "it may still run");
}

/// A caller that gives up again and again does not fill the memory.
#[test]
fn requests_that_are_not_waited_for_are_dropped_when_another_comes() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    for _ in 0..3 {
        let request = bench.publish("d", "v", SECOND);
        bench.abandon(request);
    }
    let last = bench.publish("d", "v", SECOND);
    assert_eq!(bench.entry("v").waiters.published.len(), 1);
    bench.connect("d", SECOND);
    bench.until_published(last);
    assert_eq!(bench.answers.len(), 1);
}

#[test]
fn a_consumer_that_comes_again_as_another_is_refused() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let other = Arc::new(ConsumerSpec::clone(&consumer("d-v")).fs_group(5));
    let refused = bench.ask(Ask::Publish { spec: spec("d", "v"), consumer: other }, SECOND);
    assert!(matches!(
        &bench.answers[&refused],
        Answer::Published(Err(crate::node::PublishError::ConsumerDiffers { field: "fs_group", .. }))
    ));
}

#[test]
fn consumers_are_bounded_and_the_one_too_many_is_refused() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    let mut ask = |number: usize| {
        let consumer = consumer(&number.to_string());
        bench.ask(Ask::Publish { spec: spec("d", "v"), consumer }, SECOND)
    };
    let requests: Vec<_> = (0..=MAX_CONSUMERS).map(&mut ask).collect();
    let refused = |request: &u64| match bench.answers.get(request) {
        Some(Answer::Published(Err(crate::node::PublishError::TooManyConsumers { limit: 256, .. }))) => true,
        None => false,
        other => panic!("{other:?}"),
    };
    assert_eq!(requests.iter().position(refused), Some(MAX_CONSUMERS));
}

/// A driver that takes no persistent volumes any more still has to take down what it has.
#[test]
fn what_was_published_is_taken_down_by_a_driver_that_takes_no_such_volumes_any_more() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let boot = "00000000-0000-0000-0000-000000000001".parse().unwrap();
    let settings = Settings::new("/volumes").targets_are_mounts(false);
    let (node, _) = Node::open(settings, boot, bench.store.load().unwrap(), Arc::default());
    bench.node = node;
    let policy = DriverPolicy { persistent: false, ephemeral: true, ..DriverPolicy::default() };
    bench.step(Event::DriverRegistered { driver: name("d"), policy }, SECOND);
    let mut facts = DriverFacts::new(name("d"));
    facts.capabilities.node.stage_unstage = true;
    bench.step(Event::DriverConnected { facts: Box::new(facts), predecessors_ended: false }, SECOND);
    bench.unpublish("v");
    assert!(matches!(bench.calls[0].operation, Operation::NodeUnpublish { .. }), "{:?}", bench.calls);
}
