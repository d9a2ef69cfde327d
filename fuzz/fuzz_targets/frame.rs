//! See `edge_csi_fuzz::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::frame::run(data));
