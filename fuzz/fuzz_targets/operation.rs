//! See `edge_csi_fuzz::operation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::operation::run(data));
