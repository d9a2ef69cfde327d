//! The node's objects on disk, so that pods get their volumes without the hub.

use prost::Message;

use super::super::store::{Document, TableError};
use super::metadata::Metadata;
use edge_csi_common::kubernetes::message::Update;

/// Reads the objects; none if nothing was saved. Damaged objects are quarantined: the hub has to send all
/// objects again, and nothing is unmounted before.
pub(super) fn load(document: &Document) -> Result<Metadata, TableError> {
    let lost = "the saved objects of the pods are damaged and quarantined; nothing is unmounted until the hub has sent them again";
    Ok(document.load(lost, read)?.unwrap_or_default())
}

/// Writes the objects. They are on the disk when this returns.
pub(super) async fn save(document: &Document, metadata: &Metadata) -> Result<(), TableError> {
    let metadata = metadata.clone();
    document.save_from(move || metadata.to_update().encode_to_vec()).await
}

fn read(bytes: &[u8]) -> Result<Metadata, String> {
    let update = Update::decode(bytes).map_err(|error| error.to_string())?;
    if !(update.snapshot && update.complete) {
        return Err("the saved update is not a complete snapshot".to_owned());
    }
    Metadata::default().after(update).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::super::store::{AgentStore, Content};
    use super::*;
    use edge_csi_common::kubernetes::message::object::Kind;
    use edge_csi_common::kubernetes::message::{Object, Pod};

    fn some(pods: u32) -> Metadata {
        named(pods, "pod")
    }

    fn named(pods: u32, prefix: &str) -> Metadata {
        let changed = (0..pods).map(|number| {
            let pod = Pod { namespace: "ns".into(), name: format!("{prefix}-{number}"), ..Pod::default() };
            Object { object: Some(Kind::Pod(pod)) }
        });
        let update = Update {
            source: 7,
            revision: u64::from(pods),
            snapshot: true,
            complete: true,
            changed: changed.collect(),
            ..Update::default()
        };
        Metadata::default().after(update).unwrap()
    }

    #[tokio::test]
    async fn loads_a_set_of_20_mb() {
        let directory = tempfile::tempdir().unwrap();
        let document = AgentStore::open(directory.path()).unwrap().objects;
        let many = named(1000, &"n".repeat(20_000));
        save(&document, &many).await.unwrap();
        assert!(load(&document).unwrap() == many);
        // The records of the larger set do not stay.
        save(&document, &some(1)).await.unwrap();
        assert_eq!(load(&document).unwrap(), some(1));
    }

    #[tokio::test]
    async fn loads_objects_and_quarantines_incomplete_sets() {
        let directory = tempfile::tempdir().unwrap();
        let document = AgentStore::open(directory.path()).unwrap().objects;
        assert_eq!(load(&document).unwrap(), Metadata::default());
        save(&document, &some(2)).await.unwrap();
        assert_eq!(load(&document).unwrap(), some(2));
        let part = Update { complete: false, ..some(2).to_update() };
        for damaged in [b"torn".to_vec(), part.encode_to_vec()] {
            document.save(&damaged).unwrap();
            assert_eq!(load(&document).unwrap(), Metadata::default());
            assert_eq!(document.read().unwrap(), Content::Nothing);
        }
    }
}
