//! Operations at the edge: what two requests have in common, and the rows of the journal.

use std::time::{Duration, SystemTime};

use csi_proto::{DriverName, Method};
use csi_proxy::operation::journal::record;
use csi_proxy::operation::{Identity, OperationId};

/// `secrets: {"k": "v"}` of each method.
const SECRETS: [(Method, &[u8]); 2] = [
    (Method::CreateVolume, b"\x2a\x06\x0a\x01k\x12\x01v"),
    (Method::DeleteVolume, b"\x12\x06\x0a\x01k\x12\x01v"),
];

/// Takes the bytes for a request and for a row.
pub fn run(data: &[u8]) {
    let driver = DriverName::new("csi-hostpath").expect("a good name");
    for (method, secrets) in SECRETS {
        if let Some(identity) = Identity::of(&driver, method, data) {
            let with_secrets = [data, secrets].concat();
            assert_eq!(Identity::of(&driver, method, &with_secrets), Some(identity));
        }
    }
    let (operation, now) = (OperationId::new(7), SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 31));
    if let Ok(restored) = record::open(operation, data, now) {
        let sealed = record::seal(operation, &restored.identity, &restored.stage, now);
        let again = record::open(operation, &sealed, now).expect("what was written can be read");
        assert_eq!((again.identity, again.stage), (restored.identity, restored.stage));
    }
}
