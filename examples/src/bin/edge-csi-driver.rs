//! `edge-csi-driver`: see [`edge_csi_examples::csi_driver`].

use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Clears memory when it is given back, since there were secrets in it.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    edge_csi_examples::core_dumps::forbid();
    edge_csi_examples::csi_driver::main()
}
