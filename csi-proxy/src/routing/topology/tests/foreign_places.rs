//! A liar reports volumes at the place of another node, and entries of lists that are not its own. The victim is
//! edge-1, the liar edge-0.

use super::*;
use crate::call::protobuf::append_field;

fn volume(volume_id: &str) -> csi::Volume {
    csi::Volume {
        volume_id: volume_id.to_owned(),
        accessible_topology: vec![place("edge-1")],
        ..Default::default()
    }
}

fn entry(volume: csi::Volume) -> csi::list_volumes_response::Entry {
    let published_node_ids = vec!["edge-1".to_owned(), "edge-0".to_owned()];
    let status = Some(csi::list_volumes_response::VolumeStatus { published_node_ids });
    csi::list_volumes_response::Entry { volume: Some(volume), status }
}

async fn list(route: &TopologyRouter, world: &World) -> Vec<csi::list_volumes_response::Entry> {
    let (page, code) = call(route, world, Method::ListVolumes, Vec::new()).await;
    assert_eq!(code, Code::OK);
    csi::ListVolumesResponse::decode(page.unwrap()).unwrap().entries
}

#[tokio::test(start_paused = true)]
async fn volume_has_the_topology_and_the_attachments_of_its_own_node() {
    with_nodes(2, async |world, route| {
        let forged = csi::CreateVolumeResponse { volume: Some(volume("own")) };
        world.forge("edge-0", Method::CreateVolume, forged.encode_to_vec());
        assert_eq!(created(route, world, "own", "edge-0").await, (vec![place("edge-0")], Code::OK));
        let forged = csi::ListVolumesResponse { entries: vec![entry(volume("own"))], ..Default::default() };
        world.forge("edge-0", Method::ListVolumes, forged.encode_to_vec());
        let status = csi::controller_get_volume_response::VolumeStatus {
            published_node_ids: vec!["edge-1".to_owned()],
        };
        let forged = csi::ControllerGetVolumeResponse { volume: Some(volume("own")), status: Some(status) };
        world.forge("edge-0", Method::ControllerGetVolume, forged.encode_to_vec());
        let listed = list(route, world).await.remove(0);
        assert_eq!(listed.volume.unwrap().accessible_topology, [place("edge-0")]);
        assert_eq!(listed.status.unwrap().published_node_ids, ["edge-0".to_owned()]);
        let request = csi::ControllerGetVolumeRequest { volume_id: "own".to_owned() };
        let (read, _) = call(route, world, Method::ControllerGetVolume, request.encode_to_vec()).await;
        let read = csi::ControllerGetVolumeResponse::decode(read.unwrap()).unwrap();
        assert_eq!(read.volume.unwrap().accessible_topology, [place("edge-0")]);
        assert_eq!(read.status.unwrap().published_node_ids, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn list_has_one_usable_own_id_in_each_entry() {
    with_nodes(2, async |world, route| {
        assert_eq!(create(route, world, "pvc-1", "edge-1").await, Code::OK);
        let foreign =
            csi::Volume { volume_id: "edge-1/pvc-1".to_owned(), ..Default::default() }.encode_to_vec();
        let size = csi::Volume { capacity_bytes: 666, ..Default::default() }.encode_to_vec();
        let own = csi::Volume { volume_id: "own".to_owned(), ..Default::default() }.encode_to_vec();
        let page = [
            append_field(&append_field(&[], 1, &foreign), 1, &size),
            append_field(&append_field(&[], 1, &foreign), 1, &own),
            append_field(&[], 1, &foreign),
            append_field(&[], 1, &size),
            append_field(
                &[],
                1,
                &csi::Volume { volume_id: "a\u{0}b".to_owned(), ..Default::default() }.encode_to_vec(),
            ),
            append_field(&[], 2, b""),
            Bytes::new(),
            // A client cannot read the context of the first, and the source of the second, and then not the whole list.
            append_field(&[], 1, &append_field(&own, 3, b"\x0a\x01\xff")),
            append_field(&[], 1, &append_field(&own, 4, b"\xff")),
            // The condition of a volume in CSI 1.12 and before.
            append_field(
                &append_field(&[], 1, &own),
                2,
                &append_field(&[], 2, &append_field(&[], 2, b"\xff")),
            ),
            append_field(&append_field(&[], 1, &own), 2, &append_field(&[], 2, b"\xff")),
            append_field(&[], 1, &append_field(&own, 9, &[0; limits::MAX_ENTRY])),
            append_field(&[], 1, &own),
        ];
        let page = page.iter().fold(Bytes::new(), |page, entry| append_field(&page, 1, entry));
        world.forge("edge-0", Method::ListVolumes, page);
        let listed: Vec<_> =
            list(route, world).await.into_iter().map(|entry| entry.volume.unwrap()).collect();
        let ids: Vec<_> = listed.iter().map(|volume| (&*volume.volume_id, volume.capacity_bytes)).collect();
        assert_eq!(ids, [("own", 0), ("edge-1/pvc-1", 0)]);
        let health = |id: &str| csi::VolumeHealth { volume_id: id.to_owned(), ..Default::default() };
        let entries = vec![health("edge-1/pvc-1"), health(""), health("own")];
        let forged = csi::ControllerListVolumeHealthResponse { entries, ..Default::default() };
        world.forge("edge-0", Method::ControllerListVolumeHealth, forged.encode_to_vec());
        let (page, _) = call(route, world, Method::ControllerListVolumeHealth, Vec::new()).await;
        let page = csi::ControllerListVolumeHealthResponse::decode(page.unwrap()).unwrap();
        assert_eq!(page.entries, [health("own")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_page_has_at_most_the_entries_of_a_list() {
    with_nodes(2, async |world, route| {
        assert_eq!(create(route, world, "pvc-1", "edge-1").await, Code::OK);
        world.forge("edge-0", Method::ListVolumes, b"\x0a\x00".repeat(1_000_000));
        assert_eq!(list(route, world).await.len(), 1);
        let own = append_field(&[], 1, &append_field(&[], 1, &append_field(&[], 2, b"own")));
        world.forge("edge-0", Method::ListVolumes, own.repeat(100_000));
        let listed = list(route, world).await.len();
        assert_eq!(listed, 2 * crate::routing::placements::DEFAULT_MAX_ROWS_OF_NODE + 1);
    })
    .await;
}

/// A negative capacity is none, and a node that does not answer counts with its last capacity.
#[tokio::test(start_paused = true)]
async fn wrong_capacity_of_a_node_does_not_change_that_of_others() {
    with_nodes(3, async |world, route| {
        let total = async || {
            let (message, code) = call(route, world, Method::GetCapacity, Vec::new()).await;
            assert_eq!(code, Code::OK);
            csi::GetCapacityResponse::decode(message.unwrap()).unwrap().available_capacity
        };
        assert_eq!(total().await, 21);
        world.lock().hanging.insert("edge-2".to_owned());
        assert_eq!(total().await, 21);
        sleep(2 * MINUTE).await;
        assert_eq!(total().await, 14, "too old");
        let forged = csi::GetCapacityResponse {
            available_capacity: i64::MIN,
            maximum_volume_size: Some(-1),
            ..Default::default()
        };
        world.forge("edge-0", Method::GetCapacity, forged.encode_to_vec());
        assert_eq!((total().await, capacity(route, world, "edge-0").await), (7, 0));
    })
    .await;
}
