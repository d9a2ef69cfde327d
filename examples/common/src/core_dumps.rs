//! Disables core dumps of processes that hold secrets.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Disables core dumps of this process, whatever the host's limits are: its memory holds CSI requests with
/// secrets. Only root can read its memory or attach a debugger.
///
/// Child processes are not affected.
pub fn forbid() {
    // The call fails only for an unknown value.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
