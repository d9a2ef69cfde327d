//! The messages between parts, and what the parts keep. Their bytes are slices of what was received, their maps are in order, so that the
//! same message has the same bytes, and their `Debug` leaves out the fields that have the option `debug_redact`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use prost_reflect::{FieldDescriptor, MessageDescriptor};

use super::bindings::Scratch;
use super::error::CodegenError;
use super::{Source, format, rust};

/// A schema and the source that is made from it.
pub(crate) struct Messages {
    /// The schema in the folder of schemas.
    file: &'static str,
    /// The package of the schema.
    package: &'static str,
    /// The name of the committed source.
    name: &'static str,
    /// Messages that are keys of maps.
    ordered: &'static [&'static str],
}

/// The folders of the parts with their schemas.
pub(crate) const PARTS: [(&str, &[Messages]); 3] =
    [("edge-transport", &[SESSION]), ("csi-proxy", &[CALL, STATE]), ("volume-manager", &[VOLUMES])];

const SESSION: Messages = Messages {
    file: "edge/session/v1/session.proto",
    package: "edge.session.v1",
    name: "session.rs",
    ordered: &[],
};

const CALL: Messages =
    Messages { file: "edge/csi/v1/call.proto", package: "edge.csi.v1", name: "call.rs", ordered: &[] };

const STATE: Messages = Messages {
    file: "edge/csi/v1/state.proto",
    package: "edge.csi.state.v1",
    name: "state.rs",
    ordered: &[],
};

const VOLUMES: Messages = Messages {
    file: "edge_csi/volumes/v1/volumes.proto",
    package: "edge_csi.volumes.v1",
    name: "volumes.rs",
    ordered: &[],
};

pub(crate) fn generate(folder: &Path, messages: &Messages) -> Result<Source, CodegenError> {
    let Messages { file, package, name, ordered } = messages;
    let mut compiler = protox::Compiler::new([folder]).map_err(CodegenError::Schema)?;
    compiler.include_source_info(true).include_imports(true).open_file(file).map_err(CodegenError::Schema)?;
    let pool = compiler.descriptor_pool();
    let redacted: Vec<_> =
        pool.all_messages().filter(|message| message.fields().any(|field| is_redacted(&field))).collect();

    let scratch = Scratch::new(name).map_err(CodegenError::Bindings)?;
    let mut builder = tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .skip_debug(redacted.iter().map(MessageDescriptor::full_name))
        .emit_rerun_if_changed(false)
        .out_dir(&scratch.path);
    for message in *ordered {
        builder = builder.type_attribute(format!("{package}.{message}"), "#[derive(PartialOrd, Ord)]");
    }
    builder.compile_fds(compiler.file_descriptor_set()).map_err(CodegenError::Bindings)?;
    let path = scratch.path.join(format!("{package}.rs"));
    let text = fs::read_to_string(&path).map_err(|cause| CodegenError::read(&path, cause))?;
    // prost leaves `Eq` out of messages with lists and maps. No field here is a float.
    let mut text = text.replace("PartialEq, ::prost::", "PartialEq, Eq, ::prost::");
    text.extend(redacted.iter().map(debug_impl));
    format(name, &text)
}

fn is_redacted(field: &FieldDescriptor) -> bool {
    let options = field.options();
    options.get_field_by_name("debug_redact").is_some_and(|option| option.as_bool() == Some(true))
}

/// A `Debug` of a message at the top level of its file and without a oneof, that leaves out what is redacted.
fn debug_impl(message: &MessageDescriptor) -> String {
    let mut shown = String::new();
    for field in message.fields().filter(|field| !is_redacted(field)) {
        let name = field.name();
        let _ = write!(shown, ".field({name:?}, &self.{})", rust::field_name(&field));
    }
    let name = rust::camel_case(message.name());
    format!(
        "impl ::core::fmt::Debug for {name} {{
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
                f.debug_struct({name:?}){shown}.finish_non_exhaustive()
            }}
        }}"
    )
}
