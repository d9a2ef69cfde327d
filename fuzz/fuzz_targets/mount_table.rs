//! See `edge_csi_fuzz::mount_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| edge_csi_fuzz::mount_table::run(data));
