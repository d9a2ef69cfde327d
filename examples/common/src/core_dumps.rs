//! No core dumps of what carries secrets.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Disables core dumps of this process, whatever the host's limits are: requests of drivers, with their secrets, are in its
/// memory. Only root can read its memory or attach a debugger.
///
/// Child processes are not affected.
pub fn forbid() {
    // The call fails for no value but a wrong one.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
