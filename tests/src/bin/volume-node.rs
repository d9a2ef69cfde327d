//! A process for tests that manages a node's volumes, reads orders line by line, and kills itself at a given step.

#[path = "../volume_node/mod.rs"]
mod volume_node;

use std::process::ExitCode;

use volume_manager::mounts::linux::probe;

fn main() -> ExitCode {
    match probe::serve_if_asked() {
        Ok(probe) => volume_node::run(probe),
        Err(code) => code,
    }
}
