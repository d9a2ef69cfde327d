//! Where a new volume is, told by the endpoint that stands for its node.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::with_topology as with;
use super::*;
use crate::call::{Call, Metadata, NodeId};
use crate::observe::Abandoned;

fn place() -> Topology {
    Topology::from_iter([("kubernetes.io/hostname", "edge-1")])
}

#[test]
fn a_volume_without_a_place_gets_that_of_its_node_and_keeps_the_rest() {
    let volume = csi::Volume { volume_id: "v".to_owned(), capacity_bytes: 7, ..Default::default() };
    let mut answer = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
    // Field 99 of a later version of the spec.
    answer.extend_from_slice(b"\x9a\x06\x05later");
    let whole = with(answer.clone().into(), &place());
    assert!(whole.starts_with(&answer));
    let found = csi::CreateVolumeResponse::decode(whole.clone()).unwrap().volume.unwrap();
    assert_eq!((found.volume_id.as_str(), found.capacity_bytes), ("v", 7));
    assert_eq!(found.accessible_topology, [place()]);
    assert_eq!(with(whole.clone(), &place()), whole, "once is enough");
}

#[test]
fn a_place_of_the_drivers_own_and_an_answer_without_a_volume_stay_as_they_are() {
    let own = Topology::from_iter([("vendor.example/zone", "z")]);
    let volume = csi::Volume { accessible_topology: vec![own], ..Default::default() };
    for answer in [csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec(), vec![], vec![0xff]] {
        assert_eq!(with(answer.clone().into(), &place()), answer, "{answer:?}");
    }
}

/// No call gets through it.
struct Unasked;

#[async_trait::async_trait]
impl Relay for Unasked {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        panic!("{call:?} was sent");
    }
}

#[tokio::test]
async fn no_volume_is_made_on_a_node_that_was_never_asked_where_it_is() {
    let settings = EndpointSettings::default();
    let (driver, node) = (DriverName::new("vendor").unwrap(), NodeId::new("edge-1").unwrap());
    let drivers = DriverInfo::new(driver.clone(), Mode::Each { node_info: true }, None);
    let front = Front::new(driver, Router::fixed(node), Arc::new(Unasked), settings, Some(drivers));
    let request = csi::CreateVolumeRequest { name: "pvc-1".to_owned(), ..Default::default() };
    let question = Inquiry {
        method: MethodPath::new(Method::CreateVolume.path()).unwrap(),
        metadata: Metadata::default(),
        body: request.encode_to_vec().into(),
        end: Instant::now() + Duration::from_secs(60),
        abandoned: Abandoned::default(),
    };
    assert_eq!(front.answer(question).await.collect().await.1.code, Code::UNAVAILABLE);
}
