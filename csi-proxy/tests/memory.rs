//! The memory that reading a request of millions of two-byte fields takes. One test, since memory is that of the process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use csi_proto::Method;
use csi_proxy::advanced::operation::Identity;

const REQUEST: usize = 1 << 20;

/// A value of the process's memory in bytes.
fn memory(value: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(value)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// How far the memory rises during the work.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    // Resets the peak.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS:");
    let result = work();
    (result, memory("VmHWM:").saturating_sub(before))
}

#[test]
fn reading_a_request_takes_at_most_three_times_its_size() {
    let driver = "csi-hostpath".parse().unwrap();
    for (method, unit, is_readable) in [
        (Method::CreateVolume, &b"\x78\x00"[..], true),
        (Method::CreateVolume, b"\x78\x00\x70\x00", true),
        (Method::CreateVolume, b"\x22\x00", true),
        (Method::CreateVolume, b"\x22\x03\x0a\x01a\x22\x03\x0a\x01b", true),
        (Method::CreateVolume, b"\x1a\x00", true),
        (Method::CreateVolume, b"\x0a\x00", true),
        (Method::CreateVolumeGroupSnapshot, b"\x12\x00", false),
        (Method::DeleteVolumeGroupSnapshot, b"\x12\x00", false),
    ] {
        let request = unit.repeat(REQUEST / unit.len());
        let (identity, rise) = peak(|| Identity::of(&driver, method, &request));
        assert_eq!(identity.is_ok(), is_readable, "{method} {unit:x?}");
        assert!(rise <= 3 * REQUEST, "{method} {unit:x?}: {rise} bytes");
    }
}
