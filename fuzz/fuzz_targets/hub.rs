//! See `edge_csi_fuzz::hub`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::hub::run(data));
