//! `edge-hub`: see [`edge_hub`].

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Each call makes a few hundred allocations in this process.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    edge_csi_common::allocator::return_freed_memory_at_once();
    edge_csi_common::core_dumps::forbid();
    edge_hub::main()
}
