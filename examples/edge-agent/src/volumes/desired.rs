//! The desired set on the disk. The request is stored as received, so that nothing of it is lost.

use volume_manager::advanced::message::{DesiredSet, Request};

use super::super::store::{Content, Document, TableError};
use edge_csi_common::process::chain;

/// Reads the set without changes. Returns `None` for a damaged set.
pub(super) fn read(document: &Document) -> Result<Option<DesiredSet>, TableError> {
    Ok(match document.read()? {
        Content::Bytes(request) => decode(&request).ok(),
        Content::Nothing | Content::Damaged(_) => None,
    })
}

/// Reads the set. A damaged set is quarantined: the recorded volumes stay unchanged, and the next set is accepted
/// with any revision.
pub(super) fn load(document: &Document) -> Result<Option<DesiredSet>, TableError> {
    let lost =
        "the desired set is damaged and quarantined; the recorded volumes stay unchanged until the next set";
    document.load(lost, decode)
}

fn decode(request: &[u8]) -> Result<DesiredSet, String> {
    match Request::decode(request) {
        Ok(Request::Desired(set)) => Ok(set),
        Ok(_) => Err("the saved request is not a desired set".to_owned()),
        Err(error) => Err(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::store::AgentStore;
    use super::*;

    #[test]
    fn loads_the_set_and_quarantines_damage() {
        let directory = tempfile::tempdir().unwrap();
        let document = AgentStore::open(directory.path()).unwrap().desired;
        assert_eq!(load(&document).unwrap(), None);
        let set = DesiredSet::new(7, vec![]);
        document.save(&set.encode()).unwrap();
        assert_eq!(load(&document).unwrap(), Some(set));
        document.save(b"no request").unwrap();
        assert_eq!(read(&document).unwrap(), None);
        assert_eq!(document.read().unwrap(), Content::Bytes(b"no request".to_vec()));
        assert_eq!(load(&document).unwrap(), None);
        assert_eq!(document.read().unwrap(), Content::Nothing);
    }
}
