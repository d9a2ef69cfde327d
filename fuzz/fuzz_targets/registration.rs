//! See `edge_csi_fuzz::registration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::registration::run(data));
