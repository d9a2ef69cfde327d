//! The size rules of each message, as implementations of `Validate`.

use std::fmt::Write as _;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, format, rust};

/// The size rule of a text field; the bounds themselves are constants of the library.
enum SizeRule {
    /// A bound for each text, by the name of its constant.
    Bound(&'static str),
    /// A bound for the total size of a list, by the name of its constant.
    Total(&'static str),
    /// The bound for the bytes of all keys and values of a map.
    Map,
    /// A separate check, by the name of its function in `Report`.
    Special(&'static str),
    /// No bound: a path may be as long as the system allows.
    Unbounded,
}

/// Returns the general rule of the field's type, unless the field's own text specifies another.
fn size_rule(field: &FieldDescriptor) -> SizeRule {
    match field.full_name() {
        "csi.v1.GetPluginInfoResponse.name" => return SizeRule::Special("driver_name"),
        "csi.v1.Topology.segments" => return SizeRule::Special("segments"),
        "csi.v1.VolumeCapability.MountVolume.mount_flags" => return SizeRule::Total("MOUNT_FLAGS_MAX_BYTES"),
        _ => {}
    }
    match field.name() {
        "node_id" | "published_node_ids" => SizeRule::Bound("NODE_ID_MAX_BYTES"),
        "target_path" | "staging_target_path" | "volume_path" | "volume_publish_path" => SizeRule::Unbounded,
        _ if field.is_map() => SizeRule::Map,
        _ => SizeRule::Bound("STRING_MAX_BYTES"),
    }
}

pub(crate) fn generate(schema: &Schema) -> Result<Source, CodegenError> {
    let mut text = String::new();
    for message in schema.messages() {
        text.push_str(&validate_impl(&message)?);
    }
    format("validate_messages.rs", &text)
}

fn validate_impl(message: &MessageDescriptor) -> Result<String, CodegenError> {
    let mut calls = String::new();
    for field in message.fields() {
        calls.push_str(&check(message, &field)?);
    }
    let path = rust::type_path(message);
    let report = if calls.is_empty() { "_report" } else { "report" };
    Ok(format!("impl Validate for {path} {{ fn check(&self, {report}: &mut Report) {{ {calls} }} }}\n"))
}

fn check(message: &MessageDescriptor, field: &FieldDescriptor) -> Result<String, CodegenError> {
    let (name, value) = (field.name(), rust::field_name(field));
    let in_oneof = field.containing_oneof().is_some();
    let kind = field.kind();
    let inner = kind.as_message().filter(|inner| !inner.is_map_entry());
    if let Some(inner) = inner {
        return Ok(match field.containing_oneof() {
            _ if inner.package_name() != message.package_name() => String::new(),
            Some(oneof) => {
                let choice = rust::oneof_variant(message, &oneof, field);
                let oneof = rust::escape(oneof.name());
                format!(
                    "if let Some({choice}(inner)) = &self.{oneof} {{ report.message({name:?}, Some(inner)); }}"
                )
            }
            None if field.is_list() => format!("report.messages({name:?}, &self.{value});"),
            None => format!("report.message({name:?}, self.{value}.as_ref());"),
        });
    }
    let textual = matches!(kind, Kind::String) || field.is_map();
    if (textual && in_oneof) || matches!(kind, Kind::Bytes) {
        return Err(CodegenError::NoSizeRule { field: field.full_name().to_owned() });
    }
    if !textual {
        return Ok(String::new());
    }
    let mut call = String::new();
    let _ = match size_rule(field) {
        SizeRule::Bound(bound) if field.is_list() => {
            write!(call, "report.strings({name:?}, &self.{value}, {bound});")
        }
        SizeRule::Bound(bound) => write!(call, "report.string({name:?}, &self.{value}, {bound});"),
        SizeRule::Total(bound) => write!(call, "report.total({name:?}, &self.{value}, {bound});"),
        SizeRule::Map => write!(call, "report.map({name:?}, &self.{value});"),
        SizeRule::Special(rule) => write!(call, "report.{rule}({name:?}, &self.{value});"),
        SizeRule::Unbounded => Ok(()),
    };
    Ok(call)
}
