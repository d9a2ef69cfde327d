//! The identity of operations, which does not depend on secrets.

use csi_proto::{DriverName, Method};
use csi_proxy::advanced::operation::Identity;

/// The encoded field `secrets: {"k": "v"}` of each method's request.
const SECRETS: [(Method, &[u8]); 2] = [
    (Method::CreateVolume, b"\x2a\x06\x0a\x01k\x12\x01v"),
    (Method::DeleteVolume, b"\x12\x06\x0a\x01k\x12\x01v"),
];

/// Computes the identity of a request with and without secrets.
pub fn run(data: &[u8]) {
    let driver = DriverName::new("csi-hostpath").expect("a valid driver name");
    for (method, secrets) in SECRETS {
        if let Ok(Some(identity)) = Identity::of(&driver, method, data) {
            let with_secrets = [data, secrets].concat();
            assert_eq!(Identity::of(&driver, method, &with_secrets), Ok(Some(identity)));
        }
    }
}
