//! The frames of edge-transport: messages only, their bytes as slices of what was received.

use std::fs;
use std::path::Path;

use super::bindings::Scratch;
use super::error::CodegenError;
use super::{Source, format};

const FILE: &str = "edge/session/v1/session.proto";
/// The name that prost gives to the package's source.
const GENERATED: &str = "edge.session.v1.rs";

pub(crate) fn generate(folder: &Path) -> Result<Source, CodegenError> {
    let files = protox::compile([FILE], [folder]).map_err(CodegenError::Schema)?;
    let scratch = Scratch::new("session").map_err(CodegenError::Bindings)?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .out_dir(&scratch.path)
        .compile_fds(files)
        .map_err(CodegenError::Bindings)?;
    let path = scratch.path.join(GENERATED);
    let text = fs::read_to_string(&path).map_err(|cause| CodegenError::read(&path, cause))?;
    format("session.rs", &text)
}
