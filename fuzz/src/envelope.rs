//! The encodings of calls and outcomes on a message bus.

use bytes::Bytes;
use csi_proxy::{Call, Outcome};

/// Decodes the bytes as a call and as an outcome; each decoded value is encoded and decoded again.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(call) = Call::decode(bytes.clone(), Bytes::from_static(b"body")) {
        let header = call.encode_header();
        let again = Call::decode(header.clone(), call.body.clone()).expect("an encoded call decodes");
        assert_eq!(again.encode_header(), header);
        assert_eq!(again.body, call.body);
    }
    if let Ok(outcome) = Outcome::decode(bytes) {
        let closing = outcome.encode();
        let again = Outcome::decode(closing.clone()).expect("an encoded outcome decodes");
        assert_eq!(again.encode(), closing);
        for max in [128, 200, 1000] {
            let within = outcome.encode_within(max);
            assert!(within.len() <= max, "{} bytes, expected at most {max}", within.len());
            let less = Outcome::decode(within).expect("a shortened outcome decodes");
            assert_eq!(less.code, outcome.code);
        }
    }
}
