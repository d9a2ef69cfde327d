use super::*;
use crate::fault::Fault;

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    startup: Startup,
    now: Instant,
}

impl Bench {
    fn new(facts: Facts) -> Self {
        let now = Instant::now();
        Self { startup: Startup::new(DriverName::new("vendor").unwrap(), facts, now), now }
    }

    fn wake(&mut self) -> Vec<Effect> {
        self.now = self.startup.next_wakeup().unwrap().max(self.now);
        self.startup.handle(Event::Wake, self.now)
    }

    /// Plays a whole round against a driver and says what was asked.
    fn round(&mut self, driver: &Driver) -> Vec<Question> {
        let mut effects = self.wake();
        let mut asked = Vec::new();
        while let Some(question) = effects.iter().find_map(|effect| match effect {
            Effect::Ask(question) => Some(*question),
            _ => None,
        }) {
            asked.push(question);
            effects = self.startup.handle(Event::Answered(question, driver.answer(question)), self.now);
        }
        asked
    }

    fn pause(&self) -> Duration {
        self.startup.next_wakeup().unwrap() - self.now
    }

    fn is_ready(&self) -> bool {
        let Answer::Message(probe) = self.startup.answer(Question::Probe) else {
            panic!("probe must answer")
        };
        csi::ProbeResponse::decode(probe).unwrap().ready.unwrap()
    }
}

#[derive(Clone)]
struct Driver {
    on: bool,
    version: &'static str,
    services: Vec<i32>,
    rpcs: Vec<i32>,
    ready: Option<bool>,
}

impl Driver {
    fn new() -> Self {
        Self { on: true, version: "1", services: vec![1, 2, 77, 0], rpcs: vec![1, 2, 99, 0], ready: None }
    }

    fn answer(&self, question: Question) -> Result<Bytes, Outcome> {
        if !self.on {
            return Err(Fault::CallerGone.into());
        }
        Ok(match question {
            Question::PluginInfo => csi::GetPluginInfoResponse {
                name: "other".to_owned(),
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
            Question::NodeInfo => node_info(),
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

fn node_info() -> Vec<u8> {
    csi::NodeGetInfoResponse { node_id: "n".to_owned(), ..Default::default() }.encode_to_vec()
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
fn with_the_driver_off_the_name_and_the_probe_are_answered_and_capabilities_wait() {
    let mut bench = Bench::new(Facts::default());
    bench.round(&Driver { on: false, ..Driver::new() });
    let Answer::Message(info) = bench.startup.answer(Question::PluginInfo) else { panic!("must answer") };
    let info = csi::GetPluginInfoResponse::decode(info).unwrap();
    assert_eq!((&*info.name, &*info.vendor_version), ("vendor", "unknown"));
    assert!(!bench.is_ready());
    for question in [
        Question::PluginCapabilities,
        Question::ControllerCapabilities,
        Question::GroupControllerCapabilities,
        Question::NodeCapabilities,
    ] {
        assert_eq!(bench.startup.answer(question), Answer::Wait, "{question:?}");
    }
}

#[test]
fn one_round_learns_everything_masked_and_under_the_configured_name() {
    let mut bench = Bench::new(Facts::default());
    let asked = bench.round(&Driver::new());
    use Question as Q;
    let expected =
        [Q::PluginInfo, Q::PluginCapabilities, Q::ControllerCapabilities, Q::NodeCapabilities, Q::Probe];
    assert_eq!(asked, expected);
    let Answer::Message(info) = bench.startup.answer(Q::PluginInfo) else { panic!("must answer") };
    assert_eq!(csi::GetPluginInfoResponse::decode(info).unwrap().name, "vendor");
    assert_eq!(bench.startup.answer(Q::PluginCapabilities), Answer::Message(plugin(&[1, 2]).into()));
    assert_eq!(bench.startup.answer(Q::ControllerCapabilities), Answer::Message(controller(&[1, 2]).into()));
    assert_eq!(bench.startup.answer(Q::NodeCapabilities), Answer::Message(node_service(&[3]).into()));
    let group = bench.startup.answer(Q::GroupControllerCapabilities);
    assert!(matches!(group, Answer::Status(Code::UNIMPLEMENTED, _)), "{group:?}");
    assert!(bench.is_ready(), "an absent `ready` counts as ready");
}

#[test]
fn an_endpoint_of_one_node_learns_what_the_node_is_and_no_other_asks_for_it() {
    use Question as Q;
    let mut bench = Bench::new(Facts::default());
    assert_eq!(bench.startup.answer(Q::NodeInfo), Answer::Wait);
    bench.startup = bench.startup.asking_node_info(true);
    for services in [vec![1, 3], vec![]] {
        let asked = bench.round(&Driver { version: "2", services, ..Driver::new() });
        assert_eq!(asked.iter().filter(|question| **question == Q::NodeInfo).count(), 1, "{asked:?}");
        assert_eq!(bench.startup.answer(Q::NodeInfo), Answer::Message(node_info().into()));
        assert!(bench.is_ready() && bench.startup.is_complete());
        bench = Bench::new(Facts::default());
        bench.startup = bench.startup.asking_node_info(true);
    }
}

#[test]
fn failed_rounds_are_repeated_after_longer_and_longer_pauses() {
    let mut bench = Bench::new(Facts::default());
    let off = Driver { on: false, ..Driver::new() };
    let pauses: Vec<_> = (0..7)
        .map(|_| {
            bench.round(&off);
            bench.pause().as_secs()
        })
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    bench.round(&Driver::new());
    assert_eq!(bench.pause(), 10 * SECOND);
    bench.round(&off);
    assert_eq!(bench.pause(), SECOND, "a good round resets the pause");
    for _ in 0..7 {
        bench.round(&off);
    }
    assert_eq!(bench.pause(), 10 * SECOND, "with everything known the driver is tried often");
}

#[test]
fn capabilities_are_asked_again_only_after_a_new_version_or_an_absence() {
    use Question as Q;
    let mut bench = Bench::new(Facts::default());
    let mut driver = Driver::new();
    bench.round(&driver);
    assert_eq!(bench.round(&driver), [Q::PluginInfo, Q::Probe]);
    driver.version = "2";
    assert_eq!(bench.round(&driver).len(), 5);
    driver.on = false;
    assert_eq!(bench.round(&driver), [Q::PluginInfo]);
    assert!(!bench.is_ready());
    assert!(matches!(bench.startup.answer(Q::PluginCapabilities), Answer::Message(_)), "what is known stays");
    driver.on = true;
    assert_eq!(bench.round(&driver).len(), 5);
    assert!(bench.is_ready());
}

#[test]
fn a_return_starts_a_round_at_once_and_a_second_one_if_a_round_is_running() {
    let mut bench = Bench::new(Facts::default());
    bench.round(&Driver { on: false, ..Driver::new() });
    let effects = bench.startup.handle(Event::Returned, bench.now);
    assert_eq!(effects, [Effect::Ask(Question::PluginInfo)]);
    assert!(bench.startup.handle(Event::Returned, bench.now).is_empty());
    let failed = Event::Answered(Question::PluginInfo, Err(Fault::CallerGone.into()));
    let effects = bench.startup.handle(failed, bench.now);
    assert!(effects.contains(&Effect::Ask(Question::PluginInfo)), "{effects:?}");
}

#[test]
fn a_node_that_comes_online_has_a_round_begin_at_once_while_the_driver_is_not_ready_and_else_not() {
    let mut bench = Bench::new(Facts::default());
    for _ in 0..6 {
        bench.round(&Driver { on: false, ..Driver::new() });
    }
    assert_eq!(bench.pause(), 30 * SECOND);
    assert_eq!(bench.startup.handle(Event::Online, bench.now), [Effect::Ask(Question::PluginInfo)]);
    for question in [
        Question::PluginInfo,
        Question::PluginCapabilities,
        Question::ControllerCapabilities,
        Question::NodeCapabilities,
        Question::Probe,
    ] {
        let answer = Event::Answered(question, Driver::new().answer(question));
        bench.startup.handle(answer, bench.now);
    }
    assert!(bench.is_ready());
    bench.now += 5 * SECOND;
    assert_eq!(bench.startup.handle(Event::Online, bench.now), []);
    assert_eq!(bench.pause(), 5 * SECOND);
}

#[test]
fn however_many_nodes_come_and_go_one_round_a_second_is_begun_and_one_question_is_open() {
    let mut bench = Bench::new(Facts::default());
    bench.round(&Driver { on: false, ..Driver::new() });
    bench.now += SECOND / 2;
    let (mut open, mut rounds) = (false, 0);
    for step in 0..10_000_u32 {
        bench.now += SECOND / 1000;
        let mut effects = bench.startup.handle(Event::Online, bench.now);
        if bench.startup.next_wakeup().is_some_and(|wakeup| wakeup <= bench.now) {
            effects.extend(bench.startup.handle(Event::Wake, bench.now));
        }
        if open && step % 100 == 0 {
            open = false;
            let failed = Event::Answered(Question::PluginInfo, Err(Fault::CallerGone.into()));
            effects.extend(bench.startup.handle(failed, bench.now));
        }
        for _ in effects.iter().filter(|effect| matches!(effect, Effect::Ask(_))) {
            assert!(!std::mem::replace(&mut open, true), "a second question at step {step}");
            rounds += 1;
        }
    }
    assert!((9..=11).contains(&rounds), "{rounds} rounds in 10 s");
}

#[test]
fn a_node_that_comes_online_during_a_round_that_fails_has_the_next_one_begin() {
    let mut bench = Bench::new(Facts::default());
    bench.wake();
    assert_eq!(bench.startup.handle(Event::Online, bench.now), []);
    let failed = Event::Answered(Question::PluginInfo, Err(Fault::CallerGone.into()));
    let effects = bench.startup.handle(failed, bench.now);
    assert!(effects.contains(&Effect::Ask(Question::PluginInfo)), "{effects:?}");
}

#[test]
fn a_driver_that_is_not_ready_is_reported_so() {
    let mut bench = Bench::new(Facts::default());
    bench.round(&Driver { ready: Some(false), ..Driver::new() });
    assert!(!bench.is_ready());
    assert_eq!(bench.pause(), SECOND);
}

#[test]
fn a_foreign_name_is_reported_once() {
    let mut bench = Bench::new(Facts::default());
    let driver = Driver::new();
    let info = |bench: &mut Bench| {
        bench.wake();
        let answer = Event::Answered(Question::PluginInfo, driver.answer(Question::PluginInfo));
        bench.startup.handle(answer, bench.now)
    };
    assert!(info(&mut bench).contains(&Effect::ForeignName { found: "other".to_owned() }));
    let failed = Event::Answered(Question::PluginCapabilities, Err(Fault::CallerGone.into()));
    bench.startup.handle(failed, bench.now);
    assert!(!info(&mut bench).contains(&Effect::ForeignName { found: "other".to_owned() }));
}

#[test]
fn kept_facts_answer_from_the_start() {
    let mut bench = Bench::new(Facts::default());
    bench.round(&Driver { services: vec![1, 3], ..Driver::new() });
    let kept = bench.startup.facts().clone();
    let bench = Bench::new(kept);
    assert!(matches!(bench.startup.answer(Question::ControllerCapabilities), Answer::Message(_)));
    assert!(!bench.is_ready());
}

#[test]
fn an_answer_that_was_not_asked_for_changes_nothing() {
    let mut bench = Bench::new(Facts::default());
    let event = Event::Answered(Question::Probe, Driver::new().answer(Question::Probe));
    assert!(bench.startup.handle(event, bench.now).is_empty());
    assert!(!bench.is_ready());
}
