//! The topology of new volumes at an endpoint of one node.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::with_topology as with;
use super::*;
use crate::call::{Call, Metadata, NodeId};
use crate::observe::Abandoned;

fn topology() -> Topology {
    Topology::from_iter([("kubernetes.io/hostname", "edge-1")])
}

#[test]
fn adds_node_topology_to_volume_without_one() {
    let volume = csi::Volume { volume_id: "v".to_owned(), capacity_bytes: 7, ..Default::default() };
    let mut answer = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
    // Field 99 of a later version of the spec.
    answer.extend_from_slice(b"\x9a\x06\x05later");
    let whole = with(answer.clone().into(), &topology());
    assert!(whole.starts_with(&answer));
    let found = csi::CreateVolumeResponse::decode(whole.clone()).unwrap().volume.unwrap();
    assert_eq!((found.volume_id.as_str(), found.capacity_bytes), ("v", 7));
    assert_eq!(found.accessible_topology, [topology()]);
    assert_eq!(with(whole.clone(), &topology()), whole, "once is enough");
}

#[test]
fn keeps_topology_of_the_driver() {
    let own = Topology::from_iter([("vendor.example/zone", "z")]);
    let volume = csi::Volume { accessible_topology: vec![own], ..Default::default() };
    for answer in [csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec(), vec![], vec![0xff]] {
        assert_eq!(with(answer.clone().into(), &topology()), answer, "{answer:?}");
    }
}

/// A relay that must not be called.
struct Unused;

#[async_trait::async_trait]
impl Relay for Unused {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        panic!("{call:?} was sent");
    }
}

/// A relay whose answers have this many bytes.
struct Answers(usize);

#[async_trait::async_trait]
impl Relay for Answers {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        Ok(Replies::unary(vec![0; self.0], Outcome::ok()))
    }
}

/// The outcome of a CreateVolume at the endpoint of one of several nodes.
async fn create(relay: impl Relay + 'static, has_topology: bool) -> Outcome {
    let (driver, node) = (DriverName::new("vendor").unwrap(), NodeId::new("edge-1").unwrap());
    let drivers = DriverInfo::new(driver.clone(), Mode::Each { node_info: true });
    let router = Router::fixed(node.clone());
    let service = EndpointService::new(driver, router, Arc::new(relay), Some(Arc::clone(&drivers)));
    if has_topology {
        let info = csi::NodeGetInfoResponse { accessible_topology: Some(topology()), ..Default::default() };
        let answer = Ok(info.encode_to_vec().into());
        let (question, time) = (driver_info::Question::NodeInfo, std::time::SystemTime::now());
        drivers.change(|cache, now| drop(cache.answered(&node, question, answer, now, time)));
    }
    let request = csi::CreateVolumeRequest { name: "pvc-1".to_owned(), ..Default::default() };
    let inbound = InboundCall {
        method: MethodPath::new(Method::CreateVolume.path()).unwrap(),
        metadata: Metadata::default(),
        body: request.encode_to_vec().into(),
        end: Instant::now() + Duration::from_secs(60),
        abandoned: Abandoned::default(),
    };
    service.answer(inbound).await.collect().await.1
}

#[tokio::test]
async fn creates_no_volume_before_node_topology_is_known() {
    assert_eq!(create(Unused, false).await.code, Code::UNAVAILABLE);
}

#[tokio::test]
async fn large_answer_is_not_decoded_for_the_topology() {
    let (small, large) = (create(Answers(9), true).await, create(Answers(1 << 20), true).await);
    assert!(small.is_ok(), "{small:?}");
    assert!(matches!(large.fault(), Some(Fault::ReplyTooLarge { found: 1_048_576, .. })), "{large:?}");
}
