//! The kernel's figures about the memory of this process.

use std::fs;

use super::Measured;

/// Returns the peak of the resident memory of this process, in bytes.
///
/// # Errors
/// Returns an error if /proc does not report it.
pub fn peak_memory() -> Measured<u64> {
    status("VmHWM:")
}

/// Resets the peak to the current resident memory of this process, and returns that in bytes.
///
/// # Errors
/// Returns an error if the kernel refuses the reset.
pub(super) fn reset_peak_memory() -> Measured<u64> {
    fs::write("/proc/self/clear_refs", "5")?;
    resident_memory()
}

/// Returns the resident memory of this process, in bytes.
///
/// # Errors
/// Returns an error if /proc does not report it.
pub fn resident_memory() -> Measured<u64> {
    status("VmRSS:")
}

fn status(field: &str) -> Measured<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Ok(kibibytes.ok_or_else(|| format!("/proc/self/status has no {field}"))? * 1024)
}
