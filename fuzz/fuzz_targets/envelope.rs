//! See `edge_csi_fuzz::envelope`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::envelope::run(data));
