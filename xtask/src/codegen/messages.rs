//! The messages between parts: the frames of edge-transport and the calls of csi-proxy; and what csi-proxy keeps. Their bytes are slices of what was received.

use std::fs;
use std::path::Path;

use super::bindings::Scratch;
use super::error::CodegenError;
use super::{Source, format};

/// A schema and the source that is made from it.
pub(crate) struct Messages {
    /// The schema in the folder of schemas.
    pub(crate) file: &'static str,
    /// The name that prost gives to the package's source.
    pub(crate) generated: &'static str,
    /// The name of the committed source.
    pub(crate) name: &'static str,
}

pub(crate) const SESSION: Messages =
    Messages { file: "edge/session/v1/session.proto", generated: "edge.session.v1.rs", name: "session.rs" };

pub(crate) const CALL: Messages =
    Messages { file: "edge/csi/v1/call.proto", generated: "edge.csi.v1.rs", name: "call.rs" };

pub(crate) const STATE: Messages =
    Messages { file: "edge/csi/v1/state.proto", generated: "edge.csi.state.v1.rs", name: "state.rs" };

pub(crate) fn generate(folder: &Path, messages: &Messages) -> Result<Source, CodegenError> {
    let Messages { file, generated, name } = messages;
    let files = protox::compile([file], [folder]).map_err(CodegenError::Schema)?;
    let scratch = Scratch::new(name).map_err(CodegenError::Bindings)?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .out_dir(&scratch.path)
        .compile_fds(files)
        .map_err(CodegenError::Bindings)?;
    let path = scratch.path.join(generated);
    let text = fs::read_to_string(&path).map_err(|cause| CodegenError::read(&path, cause))?;
    format(name, &text)
}
