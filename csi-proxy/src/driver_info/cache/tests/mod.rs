//! The cache with a controlled clock.

mod many_nodes;
mod notices;
mod records;
mod rounds;

use std::time::Duration;

use prost::Message as _;

use super::*;
use crate::driver_info::cache::rounds::{
    CONFIRM_INTERVAL, LONG_INTERVAL, MAX_FAILING_ROUNDS, MEDIUM_INTERVAL,
};
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
