//! The encodings of calls and outcomes on a message bus.

use bytes::Bytes;
use csi_proxy::{Call, Outcome};

/// Decodes bytes as each of them; a decoded value is encoded and decoded again.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(call) = Call::decode(bytes.clone(), Bytes::from_static(b"body")) {
        let header = call.encode_header();
        let again = Call::decode(header.clone(), call.body.clone()).expect("what was written can be read");
        assert_eq!(again.encode_header(), header);
        assert_eq!(again.body, call.body);
    }
    if let Ok(outcome) = Outcome::decode(bytes) {
        let closing = outcome.encode();
        let again = Outcome::decode(closing.clone()).expect("what was written can be read");
        assert_eq!(again.encode(), closing);
        for max in [64, 100, 1000] {
            let within = outcome.encode_within(max);
            assert!(within.len() <= max.max(64), "{} bytes within {max}", within.len());
            let less = Outcome::decode(within).expect("what was written can be read");
            assert_eq!(less.code, outcome.code);
        }
    }
}
