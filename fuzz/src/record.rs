//! Records on a node's disk: the volume store's envelope, a volume's record, and the desired set from the cloud.

use volume_manager::advanced::message::Request;
use volume_manager::advanced::node::Record;
use volume_manager::advanced::store::envelope;

/// Decodes the bytes as an envelope, a record and a request; each decoded value is encoded and decoded again.
pub fn run(data: &[u8]) {
    if let Ok(opened) = envelope::open_first(data) {
        let sealed = envelope::seal(&opened.key, opened.sequence, opened.payload);
        assert_eq!(sealed, data[..opened.bytes]);
        assert!(envelope::open(opened.key.as_row(), &sealed).is_ok());
    }
    if let Ok(record) = Record::decode(data) {
        let bytes = record.encode();
        let again = Record::decode(&bytes).expect("an encoded record decodes");
        assert_eq!(again.encode(), bytes);
    }
    if let Ok(Request::Desired(set)) = Request::decode(data) {
        assert!(Request::decode(&set.encode()).is_ok());
    }
}
