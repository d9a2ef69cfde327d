//! The allocator's option that bounds the memory of a process under attack.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// How many milliseconds mimalloc keeps freed memory before it returns it to the system.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// Makes mimalloc return freed memory to the system at once, unless the environment says otherwise. By default it does so a
/// second later: the large frames of many peers that are received one after the other, each within the hub's budget, then
/// add up.
///
/// mimalloc reads its options from the environment when a process starts, and has no safe function for them. The process
/// therefore executes its own program again, which keeps its id. If that fails, it continues without the option.
pub fn return_freed_memory_at_once() {
    if env::var_os(PURGE_DELAY).is_some() {
        return;
    }
    let (Ok(program), mut arguments) = (env::current_exe(), env::args_os()) else { return };
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let _ = command.args(arguments).env(PURGE_DELAY, "0").exec();
}
