use std::time::Duration;

use prost::Message as _;

use super::rounds::{LONG_INTERVAL, MAX_FAILING_ROUNDS, MEDIUM_INTERVAL, SHORT_INTERVAL};
use super::*;
use crate::driver_info::info::{Fact, MAX_RECORD};
use crate::driver_info::question::Question;
use csi_proto::Code;

const SECOND: Duration = Duration::from_secs(1);

/// A cache with a controlled clock.
struct Bench {
    cache: Cache,
    /// The node whose answers are requested; `None` for all nodes together.
    of: Option<NodeId>,
    now: Instant,
    notices: Vec<Notice>,
}

impl Bench {
    fn new(mode: Mode) -> Self {
        let driver = DriverName::new("vendor").unwrap();
        let of = (!mode.is_together()).then(own);
        Self { cache: Cache::new(driver, mode), of, now: Instant::now(), notices: Vec::new() }
    }

    /// With one node.
    fn one() -> Self {
        Self::one_with(false)
    }

    fn one_with(node_info: bool) -> Self {
        let mut bench = Self::new(Mode::Each { node_info });
        bench.cache.add(&own(), bench.now);
        bench
    }

    fn discovering() -> Self {
        Self::new(Mode::Together { topology_key: None, discovers: true })
    }

    /// With two configured nodes.
    fn two() -> Self {
        let mut bench = Self::new(Mode::Together { topology_key: None, discovers: false });
        ["edge-1", "edge-2"].iter().for_each(|name| bench.cache.add(&key(name), bench.now));
        bench
    }

    fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    /// Runs the next due round and returns its calls.
    fn round(&mut self, driver: &Driver) -> Vec<Question> {
        let (_, next) = self.cache.take_due(0, self.now);
        self.now = next.unwrap().max(self.now);
        self.due(driver)
    }

    /// Runs a round that is due now, one entry at a time.
    fn due(&mut self, driver: &Driver) -> Vec<Question> {
        let (due, _) = self.cache.take_due(1, self.now);
        due.first().map(|key| self.play(key, driver)).unwrap_or_default()
    }

    fn play(&mut self, key: &NodeId, driver: &Driver) -> Vec<Question> {
        let (mut asked, mut next) = (Vec::new(), Some(Question::PluginInfo));
        while let Some(question) = next {
            asked.push(question);
            let answer = driver.answer(question);
            let step = self.cache.answered(key, question, answer, self.now, self.time());
            self.notices.extend(step.1);
            next = step.0;
        }
        asked
    }

    /// Runs all rounds that are due now.
    fn all_due(&mut self, driver: &Driver) -> usize {
        let mut rounds = 0;
        while !self.due(driver).is_empty() {
            rounds += 1;
        }
        rounds
    }

    fn pause(&mut self) -> Duration {
        self.cache.take_due(0, self.now).1.unwrap() - self.now
    }

    fn answer(&self, question: Question) -> Option<Fact> {
        self.cache.answer(self.of.as_ref(), question)
    }

    fn is_ready(&self) -> bool {
        let Some(Ok(probe)) = self.answer(Question::Probe) else { panic!("probe must answer") };
        csi::ProbeResponse::decode(probe).unwrap().ready.unwrap()
    }

    fn presence(&self, name: &str) -> Presence {
        self.cache.entry(&key(name)).unwrap().presence()
    }
}

fn key(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// The node of a cache with one node.
fn own() -> NodeId {
    key("own")
}

#[derive(Clone)]
struct Driver {
    on: bool,
    name: &'static str,
    version: &'static str,
    services: Vec<i32>,
    rpcs: Vec<i32>,
    ready: Option<bool>,
    node_id: &'static str,
    fault: Fault,
}

impl Driver {
    fn new() -> Self {
        Self {
            on: true,
            name: "other",
            version: "1",
            services: vec![1, 2, 77, 0],
            rpcs: vec![1, 2, 99, 0],
            ready: None,
            node_id: "n",
            fault: Fault::Cancelled,
        }
    }

    fn off() -> Self {
        Self { on: false, ..Self::new() }
    }

    /// Registered on no node.
    fn missing() -> Self {
        let fault = Fault::DriverNotRegistered { driver: DriverName::new("vendor").unwrap() };
        Self { fault, ..Self::off() }
    }

    fn answer(&self, question: Question) -> Result<Bytes, Outcome> {
        if !self.on {
            return Err(self.fault.clone().into());
        }
        Ok(match question {
            Question::PluginInfo => csi::GetPluginInfoResponse {
                name: self.name.to_owned(),
                vendor_version: self.version.to_owned(),
                ..Default::default()
            }
            .encode_to_vec(),
            Question::PluginCapabilities => plugin(&self.services),
            Question::ControllerCapabilities => controller(&self.rpcs),
            Question::GroupControllerCapabilities => {
                return Err(Outcome::from_driver(Code::UNIMPLEMENTED, "no"));
            }
            Question::NodeCapabilities => node_service(&[3, 77, 0]),
            Question::NodeInfo => node_info(self.node_id),
            Question::Probe => csi::ProbeResponse { ready: self.ready }.encode_to_vec(),
        }
        .into())
    }
}

fn node_service(types: &[i32]) -> Vec<u8> {
    use csi::node_service_capability::{Rpc, Type};
    let capability =
        |number: &i32| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *number })) };
    csi::NodeGetCapabilitiesResponse { capabilities: types.iter().map(capability).collect() }.encode_to_vec()
}

fn node_info(node_id: &str) -> Vec<u8> {
    let place = csi::Topology::from_iter([("node", node_id)]);
    let (node_id, accessible_topology) = (node_id.to_owned(), Some(place));
    csi::NodeGetInfoResponse { node_id, accessible_topology, ..Default::default() }.encode_to_vec()
}

fn plugin(types: &[i32]) -> Vec<u8> {
    use csi::plugin_capability::{Service, Type};
    let capability =
        |number: &i32| csi::PluginCapability { r#type: Some(Type::Service(Service { r#type: *number })) };
    csi::GetPluginCapabilitiesResponse { capabilities: types.iter().map(capability).collect() }
        .encode_to_vec()
}

fn controller(types: &[i32]) -> Vec<u8> {
    use csi::controller_service_capability::{Rpc, Type};
    let capability =
        |number: &i32| csi::ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *number })) };
    csi::ControllerGetCapabilitiesResponse { capabilities: types.iter().map(capability).collect() }
        .encode_to_vec()
}

#[test]
fn answers_name_and_probe_while_driver_is_offline() {
    let mut bench = Bench::one();
    bench.round(&Driver::off());
    let Some(Ok(info)) = bench.answer(Question::PluginInfo) else { panic!("must answer") };
    let info = csi::GetPluginInfoResponse::decode(info).unwrap();
    assert_eq!((&*info.name, &*info.vendor_version), ("vendor", "unknown"));
    assert!(!bench.is_ready());
    for question in [
        Question::PluginCapabilities,
        Question::ControllerCapabilities,
        Question::GroupControllerCapabilities,
        Question::NodeCapabilities,
    ] {
        assert_eq!(bench.answer(question), None, "{question:?}");
    }
}

#[test]
fn one_round_refreshes_everything() {
    use Question as Q;
    let mut bench = Bench::one();
    let asked = bench.round(&Driver::new());
    let expected =
        [Q::PluginInfo, Q::PluginCapabilities, Q::ControllerCapabilities, Q::NodeCapabilities, Q::Probe];
    assert_eq!(asked, expected);
    let Some(Ok(info)) = bench.answer(Q::PluginInfo) else { panic!("must answer") };
    assert_eq!(csi::GetPluginInfoResponse::decode(info).unwrap().name, "vendor");
    assert_eq!(bench.answer(Q::PluginCapabilities), Some(Ok(plugin(&[1, 2]).into())));
    assert_eq!(bench.answer(Q::ControllerCapabilities), Some(Ok(controller(&[1, 2]).into())));
    assert_eq!(bench.answer(Q::NodeCapabilities), Some(Ok(node_service(&[3]).into())));
    let group = bench.answer(Q::GroupControllerCapabilities);
    assert!(matches!(group, Some(Err(_))), "{group:?}");
    assert!(bench.is_ready(), "an absent `ready` counts as ready");
}

#[test]
fn refreshes_node_info_only_for_one_node() {
    use Question as Q;
    for services in [vec![1, 3], vec![]] {
        let mut bench = Bench::one_with(true);
        assert_eq!(bench.answer(Q::NodeInfo), None);
        let asked = bench.round(&Driver { version: "2", services, ..Driver::new() });
        assert_eq!(asked.iter().filter(|question| **question == Q::NodeInfo).count(), 1, "{asked:?}");
        assert_eq!(bench.answer(Q::NodeInfo), Some(Ok(node_info("n").into())));
        assert!(bench.is_ready() && bench.cache.status(bench.of.as_ref(), bench.time()).complete);
    }
}

#[test]
fn failed_rounds_back_off() {
    let mut bench = Bench::one();
    let pauses: Vec<_> = (0..7)
        .map(|_| {
            bench.round(&Driver::off());
            bench.pause().as_secs()
        })
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    bench.round(&Driver::new());
    assert_eq!(bench.pause(), 10 * SECOND);
    bench.round(&Driver::off());
    assert_eq!(bench.pause(), SECOND, "a good round resets the pause");
    for _ in 0..7 {
        bench.round(&Driver::off());
    }
    assert_eq!(bench.pause(), 10 * SECOND, "with everything known the driver is tried often");
}

#[test]
fn refreshes_capabilities_after_a_change_or_outage() {
    use Question as Q;
    let mut bench = Bench::one();
    let mut driver = Driver::new();
    bench.round(&driver);
    assert_eq!(bench.round(&driver), [Q::PluginInfo, Q::Probe]);
    driver.version = "2";
    assert_eq!(bench.round(&driver).len(), 5);
    driver.on = false;
    assert_eq!(bench.round(&driver), [Q::PluginInfo]);
    assert!(!bench.is_ready());
    assert!(matches!(bench.answer(Q::PluginCapabilities), Some(Ok(_))), "what is known stays");
    driver.on = true;
    assert_eq!(bench.round(&driver).len(), 5);
    assert!(bench.is_ready());
}

#[test]
fn refresh_begins_a_round_at_once() {
    let mut bench = Bench::one();
    bench.round(&Driver::new());
    bench.cache.refresh(bench.of.as_ref(), bench.now);
    assert_eq!(bench.due(&Driver::new()).len(), 5, "everything is asked");
    bench.cache.refresh(bench.of.as_ref(), bench.now);
    let (due, _) = bench.cache.take_due(1, bench.now);
    bench.cache.refresh(bench.of.as_ref(), bench.now);
    assert_eq!(bench.due(&Driver::new()), [], "one at a time");
    bench.play(&due[0], &Driver::new());
    assert_eq!(bench.due(&Driver::new()).len(), 5);
    assert_eq!(bench.due(&Driver::new()), []);
}

/// All nodes are refreshed before presence is known.
#[test]
fn refresh_of_all_nodes_covers_unknown_presence() {
    let mut bench = Bench::two();
    assert_eq!(bench.all_due(&Driver::new()), 2);
    bench.cache.refresh(None, bench.now);
    assert_eq!(bench.all_due(&Driver::new()), 2);
    for name in ["edge-1", "edge-2"] {
        assert_eq!(bench.cache.arrived(&key(name), bench.now), None);
    }
    bench.cache.synced(bench.now);
    bench.now += SECOND;
    bench.due(&Driver::new());
    let fault = Fault::DriverNotRegistered { driver: DriverName::new("vendor").unwrap() };
    bench.due(&Driver { fault, ..Driver::off() });
    bench.cache.refresh(None, bench.now);
    assert_eq!(bench.cache.take_due(2, bench.now).0, [key("edge-2")]);
}

#[test]
fn online_node_is_refreshed_unless_ready() {
    let mut bench = Bench::one();
    for _ in 0..6 {
        bench.round(&Driver::off());
    }
    bench.now += SECOND;
    assert_eq!(bench.pause(), 29 * SECOND);
    bench.cache.arrived(&own(), bench.now);
    assert_eq!(bench.due(&Driver::new()).len(), 5);
    assert!(bench.is_ready());
    bench.now += 5 * SECOND;
    bench.cache.arrived(&own(), bench.now);
    assert_eq!(bench.pause(), 5 * SECOND);
}

#[test]
fn flapping_node_begins_one_round_a_second() {
    let mut bench = Bench::one();
    bench.round(&Driver::off());
    bench.now += SECOND / 2;
    let (mut open, mut rounds) = (None, 0);
    for step in 0..10_000_u32 {
        bench.now += SECOND / 1000;
        bench.cache.arrived(&own(), bench.now);
        if step % 100 == 0
            && let Some(key) = open.take()
        {
            bench.play(&key, &Driver::off());
        }
        for key in bench.cache.take_due(9, bench.now).0 {
            assert!(open.replace(key).is_none(), "a second round at step {step}");
            rounds += 1;
        }
    }
    assert!((9..=11).contains(&rounds), "{rounds} rounds in 10 s");
}

#[test]
fn online_node_repeats_a_failed_round() {
    let mut bench = Bench::one();
    let (due, _) = bench.cache.take_due(1, bench.now);
    bench.now += 5 * SECOND;
    bench.cache.arrived(&own(), bench.now);
    bench.play(&due[0], &Driver::off());
    assert_eq!(bench.pause(), Duration::ZERO);
}

#[test]
fn reports_driver_that_is_not_ready() {
    let mut bench = Bench::one();
    bench.round(&Driver { ready: Some(false), ..Driver::new() });
    assert!(!bench.is_ready());
    assert_eq!(bench.pause(), SECOND);
}

#[test]
fn reports_name_mismatch_once() {
    let mut bench = Bench::one();
    for _ in 0..3 {
        bench.round(&Driver::new());
    }
    assert_eq!(bench.notices, [Notice::NameMismatch { found: "other".to_owned() }, Notice::Reached]);
}

/// An answer that takes long to decode is refused, and its node counts as offline; the last good answers stay.
#[test]
fn too_large_answer_is_refused() {
    let mut bench = Bench::two();
    let good = Driver::new();
    bench.all_due(&good);
    let capabilities = bench.answer(Question::ControllerCapabilities);
    bench.notices.clear();
    let repeated = Driver { rpcs: vec![1; MAX_RECORD], ..Driver::new() };
    for (seconds, notices) in [(0, 1), (9, 1), (1, 2)] {
        bench.now += seconds * SECOND;
        bench.cache.refresh(Some(&key("edge-1")), bench.now);
        for node in bench.cache.take_due(2, bench.now).0 {
            let is_large = node == key("edge-1");
            let round = bench.play(&node, if is_large { &repeated } else { &good });
            assert!(!is_large || round.last() == Some(&Question::ControllerCapabilities), "{round:?}");
        }
        assert_eq!(
            (bench.presence("edge-1"), bench.presence("edge-2")),
            (Presence::Offline, Presence::Online)
        );
        assert_eq!(bench.notices.len(), notices, "{:?}", bench.notices);
    }
    let found = controller(&repeated.rpcs).len();
    let notice = Notice::TooLarge { question: Question::ControllerCapabilities, found, max: MAX_RECORD };
    assert_eq!(bench.notices[0], notice);
    assert_eq!(bench.answer(Question::ControllerCapabilities), capabilities);
}

#[test]
fn reports_each_outage_once() {
    let mut bench = Bench::one();
    for (driver, stale) in [(Driver::off(), true), (Driver::new(), false), (Driver::off(), true)] {
        bench.notices.clear();
        (0..3).for_each(|_| drop(bench.round(&driver)));
        let away = bench.notices.iter().filter(|notices| matches!(notices, Notice::Unreachable(_))).count();
        assert_eq!(away, usize::from(!driver.on));
        assert_eq!(
            (bench.cache.report_stale(Some(&own())), bench.cache.report_stale(Some(&own()))),
            (stale, false)
        );
    }
}

#[test]
fn stored_info_answers_with_its_age() {
    let mut bench = Bench::one();
    bench.round(&Driver { services: vec![1, 3], ..Driver::new() });
    let (record, as_of) = bench.cache.take_record(&own(), false).unwrap();
    let (kept, at) = Info::decode(&record).unwrap();
    assert_eq!(at, as_of);
    for add_first in [true, false] {
        let mut later = Bench::new(Mode::Each { node_info: false });
        if add_first {
            later.cache.add(&own(), later.now);
        }
        later
            .cache
            .restore([(own(), kept.clone(), as_of), (key("edge-9"), Info::default(), as_of)], later.now);
        later.cache.add(&own(), later.now);
        assert!(matches!(later.answer(Question::ControllerCapabilities), Some(Ok(_))));
        let status = later.cache.status(later.of.as_ref(), as_of + SECOND);
        assert_eq!((status.reached, status.ready, status.complete), (None, false, true));
        assert_eq!((status.age, later.cache.entries().count()), (Some(SECOND), 1));
    }
}

#[test]
fn stores_unchanged_record_hourly_and_after_failure() {
    let mut bench = Bench::one();
    let start = bench.time();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let round = |bench: &mut Bench, seconds: u64, driver: &Driver| {
        let (_, next) = bench.cache.take_due(0, bench.now);
        bench.now = next.unwrap();
        let (due, _) = bench.cache.take_due(1, bench.now);
        let mut next = Some(Question::PluginInfo);
        while let Some(question) = next {
            next = bench.cache.answered(&due[0], question, driver.answer(question), bench.now, at(seconds)).0;
        }
        let saved = bench.cache.take_record(&own(), false);
        saved.map(|(_, as_of)| as_of)
    };
    assert_eq!(round(&mut bench, 0, &Driver::new()), Some(at(0)));
    assert_eq!(round(&mut bench, 5, &Driver::new()), None, "one write at a time");
    bench.cache.saved(&own(), at(0), false);
    assert_eq!(round(&mut bench, 10, &Driver::new()), Some(at(10)));
    bench.cache.saved(&own(), at(10), false);
    assert_eq!(round(&mut bench, 20, &Driver::new()), Some(at(20)));
    bench.cache.saved(&own(), at(20), true);
    assert_eq!(round(&mut bench, 3619, &Driver::new()), None);
    assert_eq!(round(&mut bench, 3620, &Driver::new()), Some(at(3620)));
    bench.cache.saved(&own(), at(3620), true);
    assert_eq!(round(&mut bench, 3700, &Driver::new()), None);
    assert_eq!(round(&mut bench, 3710, &Driver::off()), Some(at(3700)), "from now on the age counts");
    bench.cache.saved(&own(), at(3700), true);
    assert_eq!(round(&mut bench, 3720, &Driver::off()), None);
}

#[test]
fn node_is_selectable_after_its_info() {
    let mut bench = Bench::two();
    bench.cache.observe(&key("edge-1"), &Outcome::ok(), bench.now);
    assert_eq!(bench.presence("edge-1"), Presence::Unknown);
    bench.due(&Driver::new());
    assert_eq!(bench.presence("edge-1"), Presence::Online);
    let observe =
        |bench: &mut Bench, fault: Fault| bench.cache.observe(&key("edge-1"), &fault.into(), bench.now);
    observe(&mut bench, Fault::HubUnreachable { reason: String::new() });
    assert_eq!(bench.presence("edge-1"), Presence::Online);
    observe(&mut bench, Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() });
    assert_eq!(bench.presence("edge-1"), Presence::Offline);
    bench.cache.observe(&key("edge-1"), &Outcome::ok(), bench.now);
    assert_eq!(bench.presence("edge-1"), Presence::Online);
}

#[test]
fn discovers_nodes_with_the_driver() {
    let mut bench = Bench::discovering();
    let of_driver = |bench: &Bench| {
        let nodes = bench.cache.entries().filter(|(_, entry)| entry.is_of_driver());
        nodes.map(|(node, _)| node.to_string()).collect::<Vec<_>>()
    };
    let mut known = Bench::discovering();
    known.cache.arrived(&key("edge-9"), known.now);
    known.round(&Driver::new());
    let (record, as_of) = known.cache.take_record(&key("edge-9"), false).unwrap();
    let (kept, _) = Info::decode(&record).unwrap();
    bench.cache.restore([(key("edge-9"), kept, as_of)], bench.now);
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.arrived(&key("edge-2"), bench.now);
    bench.cache.synced(bench.now);
    assert_eq!(of_driver(&bench), ["edge-1", "edge-2", "edge-9"]);
    assert_eq!(bench.presence("edge-9"), Presence::Offline);
    bench.due(&Driver::new());
    bench.due(&Driver::missing());
    assert_eq!(of_driver(&bench), ["edge-1", "edge-9"], "a node without the driver does not count");
    for name in ["edge-1", "edge-2"] {
        bench.cache.left(&key(name), bench.now);
    }
    assert_eq!(bench.cache.entries().count(), 2, "edge-2 is forgotten");
    assert!(!bench.cache.remove(&key("edge-9")));
    assert_eq!(of_driver(&bench), ["edge-1"]);
    assert_eq!(bench.cache.only(), None, "there may be others");
}

#[test]
fn backs_off_on_node_without_the_driver() {
    let mut bench = Bench::discovering();
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.synced(bench.now);
    let mut asked = Vec::new();
    for second in 0..3600_u32 {
        if !bench.due(&Driver::missing()).is_empty() {
            asked.push(second);
        }
        bench.now += SECOND;
    }
    assert_eq!(asked[..9], [0, 1, 3, 7, 15, 31, 63, 127, 255]);
    assert!(asked.len() < 25, "{asked:?}");
}

#[test]
fn configured_nodes_exclude_others() {
    let mut bench = Bench::two();
    bench.cache.arrived(&key("edge-3"), bench.now);
    bench.cache.arrived(&key("edge-1"), bench.now);
    let known: Vec<_> = bench.cache.entries().map(|(node, _)| node.clone()).collect();
    assert_eq!(known, [key("edge-1"), key("edge-2")]);
}

#[test]
fn connected_nodes_are_refreshed_rarely() {
    let mut bench = Bench::discovering();
    for number in 0..1000 {
        bench.cache.arrived(&key(&format!("edge-{number}")), bench.now);
    }
    bench.cache.synced(bench.now);
    assert_eq!(bench.all_due(&Driver::new()), 1000);
    bench.now += MEDIUM_INTERVAL;
    assert_eq!(bench.all_due(&Driver::new()), 1, "the one by which Probe is answered");
    bench.cache.arrived(&key("edge-7"), bench.now);
    assert_eq!(bench.all_due(&Driver::new()), 1);
    bench.now += LONG_INTERVAL;
    assert!(bench.all_due(&Driver::new()) >= 999);
}

#[test]
fn probe_is_ready_while_one_node_is_ready() {
    let mut bench = Bench::discovering();
    for name in ["edge-1", "edge-2", "edge-3"] {
        bench.cache.arrived(&key(name), bench.now);
    }
    bench.cache.synced(bench.now);
    assert!(!bench.is_ready());
    bench.all_due(&Driver::new());
    bench.now += 5 * SECOND;
    bench.cache.left(&key("edge-1"), bench.now);
    assert!(bench.is_ready());
    let (due, _) = bench.cache.take_due(9, bench.now);
    assert_eq!(due, [key("edge-2")]);
    bench.play(&due[0], &Driver { ready: Some(false), ..Driver::new() });
    let (due, _) = bench.cache.take_due(9, bench.now);
    assert_eq!(due, [key("edge-3")]);
    bench.play(&due[0], &Driver { ready: Some(false), ..Driver::new() });
    assert!(!bench.is_ready());
}

#[test]
fn nodes_answer_with_common_capabilities() {
    use Question as Q;
    let mut bench = Bench::two();
    assert_eq!(bench.answer(Q::ControllerCapabilities), None);
    bench.due(&Driver { rpcs: vec![1, 2, 5], version: "2", ..Driver::new() });
    bench.due(&Driver { rpcs: vec![1, 5], ..Driver::new() });
    assert_eq!(bench.answer(Q::ControllerCapabilities), Some(Ok(controller(&[1, 5]).into())));
    assert_eq!(bench.answer(Q::NodeCapabilities), Some(Ok(node_service(&[3]).into())));
    assert_eq!(bench.answer(Q::PluginCapabilities), Some(Ok(plugin(&[1, 2]).into())), "each has a place");
    for none in [Q::GroupControllerCapabilities, Q::NodeInfo] {
        assert!(matches!(bench.answer(none), Some(Err(_))), "{none:?}");
    }
    let Some(Ok(info)) = bench.answer(Q::PluginInfo) else { panic!("must answer") };
    assert_eq!(csi::GetPluginInfoResponse::decode(info).unwrap().vendor_version, "1, 2");
}

#[test]
fn uses_topology_key_for_node_without_topology() {
    let place = |topology_key: Option<&str>, node_id: &'static str| {
        let topology_key = topology_key.map(ToOwned::to_owned);
        let mut bench = Bench::new(Mode::Together { topology_key, discovers: true });
        bench.cache.arrived(&key("edge-1"), bench.now);
        let driver = Driver { node_id, ..Driver::new() };
        let (due, _) = bench.cache.take_due(1, bench.now);
        let mut next = Some(Question::PluginInfo);
        while let Some(question) = next {
            let answer = match (question, node_id) {
                (Question::NodeInfo, "") => Ok(Bytes::new()),
                _ => driver.answer(question),
            };
            next = bench.cache.answered(&due[0], question, answer, bench.now, bench.time()).0;
        }
        bench.cache.entry(&key("edge-1")).unwrap().topology()
    };
    assert_eq!(place(Some("a/b"), ""), Some(csi::Topology::from_iter([("a/b", "edge-1")])));
    assert_eq!(place(Some("a/b"), "n"), Some(csi::Topology::from_iter([("node", "n")])));
    assert_eq!(place(None, ""), Some(csi::Topology::default()));
}

#[test]
fn refreshes_absent_nodes_once() {
    let mut bench = Bench::two();
    bench.all_due(&Driver::off());
    assert_eq!(bench.cache.refresh_absent(bench.now), [], "refreshed just before");
    bench.now += SECOND;
    let asked = bench.cache.refresh_absent(bench.now);
    assert_eq!(asked, [key("edge-1"), key("edge-2")]);
    assert!(bench.cache.any_in_round(&asked, bench.now));
    bench.all_due(&Driver::new());
    assert!(!bench.cache.any_in_round(&asked, bench.now));
    // With presence, offline nodes are not refreshed.
    bench.now += SECOND;
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.left(&key("edge-2"), bench.now);
    bench.cache.synced(bench.now);
    let fault = Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() };
    bench.all_due(&Driver { fault, ..Driver::off() });
    bench.now += SECOND;
    assert_eq!(bench.cache.refresh_absent(bench.now), [key("edge-1")]);
}

/// A CreateVolume without a node waits for a round that has just begun.
#[test]
fn waits_for_a_running_round() {
    let mut bench = Bench::discovering();
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.synced(bench.now);
    let (due, _) = bench.cache.take_due(1, bench.now);
    let asked = bench.cache.refresh_absent(bench.now);
    assert_eq!(asked, [key("edge-1")]);
    assert!(bench.cache.any_in_round(&asked, bench.now));
    bench.play(&due[0], &Driver::new());
    assert_eq!((bench.cache.any_in_round(&asked, bench.now), bench.pause()), (false, SHORT_INTERVAL));
}

#[test]
fn reports_changed_topology_once() {
    let mut bench = Bench::two();
    bench.all_due(&Driver::new());
    for (node_id, expected) in [("n", 0), ("elsewhere", 2), ("elsewhere", 0)] {
        bench.notices.clear();
        bench.now += MEDIUM_INTERVAL;
        assert_eq!(bench.all_due(&Driver { node_id, ..Driver::new() }), 2);
        let moved = bench.notices.iter().filter(|notices| matches!(notices, Notice::Moved { .. })).count();
        assert_eq!(moved, expected, "{node_id}");
    }
}

/// A node that changes what it reports in every round.
#[test]
fn one_node_causes_few_notices() {
    let mut bench = Bench::discovering();
    bench.cache.require_admission();
    bench.cache.arrived(&own(), bench.now);
    let (mut rounds, mut refusals) = (0, 0);
    for second in 0..=20 {
        rounds += 1;
        let node_id = ["a", "b"][second % 2];
        let driver = Driver { node_id, name: node_id, ..Driver::new() };
        bench.cache.refresh(Some(&own()), bench.now);
        assert_eq!(bench.all_due(&driver), 1);
        let reported = bench.cache.to_admit(&own()).unwrap();
        let conflict = ClaimConflict::TooLarge { size: second };
        refusals += usize::from(bench.cache.admit(&own(), &reported, Some(conflict), bench.now));
        bench.now += SECOND;
    }
    let count = |wanted: fn(&Notice) -> bool| bench.notices.iter().filter(|notice| wanted(notice)).count();
    let names = count(|notice| matches!(notice, Notice::NameMismatch { .. }));
    let moves = count(|notice| matches!(notice, Notice::Moved { .. }));
    assert_eq!((rounds, names, moves, refusals), (21, 3, 2, 3));
}

/// On an empty state the first node to answer does not decide alone.
#[test]
fn most_connected_nodes_decide_about_capabilities() {
    let mut bench = Bench::discovering();
    let names = ["edge-1", "edge-2", "edge-3", "edge-4"].map(key);
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    let _ = bench.cache.take_due(4, bench.now);
    let known = names.each_ref().map(|name| {
        bench.play(name, &Driver::new());
        bench.cache.is_representative()
    });
    assert_eq!(known, [false, false, true, true]);
    // A node whose round has failed, and one that is not connected, is not awaited.
    let mut bench = Bench::discovering();
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    let _ = bench.cache.take_due(4, bench.now);
    bench.play(&names[0], &Driver::new());
    bench.play(&names[1], &Driver::off());
    assert!(!bench.cache.is_representative());
    bench.cache.left(&names[2], bench.now);
    bench.play(&names[3], &Driver::off());
    assert!(bench.cache.is_representative());
}

#[test]
fn failing_nodes_leave_rounds_to_the_others() {
    let mut bench = Bench::discovering();
    let names: Vec<_> = (0..40).map(|number| key(&format!("bad-{number:02}"))).collect();
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    bench.cache.synced(bench.now);
    bench.all_due(&Driver::off());
    bench.now += 10 * SECOND;
    let begun = bench.cache.take_due(16, bench.now).0;
    assert_eq!(begun.len(), MAX_FAILING_ROUNDS);
    // They hang. A node with a later name still gets its round.
    bench.cache.arrived(&key("good"), bench.now);
    let (due, _) = bench.cache.take_due(16 - begun.len(), bench.now);
    assert_eq!(due, [key("good")]);
    // The end of a failing round makes room for the next one.
    let failed = Err(Outcome::from(Fault::Cancelled));
    bench.cache.answered(&begun[0], Question::PluginInfo, failed, bench.now, bench.time());
    let (due, _) = bench.cache.take_due(16, bench.now);
    assert!(due.len() == 1 && !begun.contains(&due[0]), "{due:?}");
}
