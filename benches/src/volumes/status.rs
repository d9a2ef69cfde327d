//! What the kernel says of this process's memory.

use std::fs;

use super::Measured;

/// The most memory that this process has had resident, in bytes.
///
/// # Errors
/// If /proc does not say.
pub fn peak_memory() -> Measured<u64> {
    status("VmHWM:")
}

/// From now on the peak is that since now. Answers what is resident, in bytes.
///
/// # Errors
/// If the kernel does not do it.
pub(super) fn forget_peak_memory() -> Measured<u64> {
    fs::write("/proc/self/clear_refs", "5")?;
    resident_memory()
}

/// The memory that this process has resident now, in bytes.
///
/// # Errors
/// If /proc does not say.
pub fn resident_memory() -> Measured<u64> {
    status("VmRSS:")
}

fn status(field: &str) -> Measured<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Ok(kibibytes.ok_or_else(|| format!("/proc/self/status has no {field}"))? * 1024)
}
