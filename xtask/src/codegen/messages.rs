//! The messages between components, and the messages that they store. Bytes fields are slices of the received buffer.
//! Maps are ordered, so that equal messages have equal bytes. `Debug` omits the fields with the option `debug_redact`.

use heck::ToUpperCamelCase;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use prost_reflect::{FieldDescriptor, MessageDescriptor};

use super::bindings::Scratch;
use super::error::CodegenError;
use super::{Source, format, rust};

/// The folders of the components with their schemas. Each schema generates a source with the schema's name.
pub(crate) const PARTS: &[(&str, &[&str])] = &[
    ("edge-transport", &["edge/session/v1/session.proto"]),
    ("csi-proxy", &["edge/csi/v1/call.proto", "edge/csi/v1/state.proto"]),
    ("volume-manager", &["edge_csi/volumes/v1/volumes.proto", "edge_csi/volumes/v1/record.proto"]),
    (
        "examples/common",
        &["edge_csi/certificates/v1/certificates.proto", "edge_csi/kubernetes/v1/kubernetes.proto"],
    ),
    ("examples/edge-agent", &["edge_csi/groups/v1/groups.proto"]),
];

/// Messages that are keys of maps, and therefore derive `Ord`.
const ORDERED: [&str; 2] = ["edge_csi.kubernetes.v1.ObjectKey", "edge_csi.kubernetes.v1.SecretName"];

pub(crate) fn generate(folder: &Path, file: &str) -> Result<Source, CodegenError> {
    let mut compiler = protox::Compiler::new([folder]).map_err(CodegenError::Schema)?;
    compiler.include_source_info(true).include_imports(true).open_file(file).map_err(CodegenError::Schema)?;
    let pool = compiler.descriptor_pool();
    let absent = || CodegenError::read(&folder.join(file), io::ErrorKind::NotFound.into());
    let schema = pool.get_file_by_name(file).ok_or_else(absent)?;
    let redacted: Vec<_> =
        schema.messages().filter(|message| message.fields().any(|field| is_redacted(&field))).collect();

    let scratch = Scratch::new(stem(file)).map_err(CodegenError::Bindings)?;
    let mut builder = tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .skip_debug(redacted.iter().map(MessageDescriptor::full_name))
        .emit_rerun_if_changed(false)
        .out_dir(&scratch.path);
    for message in ORDERED {
        builder = builder.type_attribute(message, "#[derive(PartialOrd, Ord)]");
    }
    for import in schema.dependencies() {
        let path = format!("crate::generated::{}", stem(import.name()));
        builder = builder.extern_path(format!(".{}", import.package_name()), path);
    }
    builder.compile_fds(compiler.file_descriptor_set()).map_err(CodegenError::Bindings)?;
    let path = scratch.path.join(format!("{}.rs", schema.package_name()));
    let text = fs::read_to_string(&path).map_err(|cause| CodegenError::read(&path, cause))?;
    // prost omits `Eq` for messages with lists and maps. No field here is a float.
    let mut text = text.replace("PartialEq, ::prost::", "PartialEq, Eq, ::prost::");
    text.extend(redacted.iter().map(debug_impl));
    format(&format!("{}.rs", stem(file)), &text)
}

/// Returns the name of a schema's source, without its extension.
fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.trim_end_matches(".proto")
}

fn is_redacted(field: &FieldDescriptor) -> bool {
    let options = field.options();
    options.get_field_by_name("debug_redact").is_some_and(|option| option.as_bool() == Some(true))
}

/// Generates a `Debug` that omits redacted fields, for a message at the top level of its file and without a oneof.
fn debug_impl(message: &MessageDescriptor) -> String {
    let mut shown = String::new();
    for field in message.fields().filter(|field| !is_redacted(field)) {
        let name = field.name();
        let _ = write!(shown, ".field({name:?}, &self.{})", rust::field_name(&field));
    }
    let name = message.name().to_upper_camel_case();
    format!(
        "impl ::core::fmt::Debug for {name} {{
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
                f.debug_struct({name:?}){shown}.finish_non_exhaustive()
            }}
        }}"
    )
}
