//! See `edge_csi_fuzz::session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::session::run(data));
