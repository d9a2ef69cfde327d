//! Where a new volume is, told by the endpoint that stands for its node.

use csi_proto::csi::v1 as csi;
use futures_util::StreamExt as _;

use crate::replies::{Replies, Reply};
use crate::route::field::with_topology as with;

/// The answer to a CreateVolume with this place, if it names none. Without one a pod could be put where its volume is not.
pub(super) fn placed(answer: Replies, place: csi::Topology) -> Replies {
    match answer.into_whole() {
        Ok((message, outcome)) => Replies::whole(message.map(|message| with(message, &place)), outcome),
        Err(parts) => Replies::stream(parts.map(move |part| match part {
            Reply::Message(message) => Reply::Message(with(message, &place)),
            end @ Reply::End(_) => end,
        })),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn place() -> csi::Topology {
        csi::Topology::from_iter([("kubernetes.io/hostname", "edge-1")])
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
        let own = csi::Topology::from_iter([("vendor.example/zone", "z")]);
        let volume = csi::Volume { accessible_topology: vec![own], ..Default::default() };
        for answer in [csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec(), vec![], vec![0xff]]
        {
            assert_eq!(with(answer.clone().into(), &place()), answer, "{answer:?}");
        }
    }
}
