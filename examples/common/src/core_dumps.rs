//! No core dumps of what carries secrets.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Has the kernel write no core dump of this process, whatever the host's limits are: requests of drivers pass through it, with
/// their secrets. Nobody but root can look into its memory either, or attach a debugger to it.
///
/// Programs that this process starts are not concerned.
pub fn forbid() {
    // The call fails for no value but a wrong one.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
