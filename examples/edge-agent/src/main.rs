//! `edge-agent`: see [`edge_agent`].

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The allocator of the process, in which each call makes a few hundred allocations.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    edge_csi_common::core_dumps::forbid();
    edge_agent::main()
}
