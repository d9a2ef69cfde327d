//! The size rules of each message, as implementations of `Validate`.

use std::fmt::Write as _;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, format, rust};

/// The size rule of a text field; the bounds themselves are constants of the library.
enum Measure {
    /// A named bound.
    Bound(&'static str),
    /// A repeated field with a bound on its total size, not on each element.
    Total(&'static str),
    /// A map, by the bytes of all keys and values.
    Map,
    /// A specific validation function.
    Special(&'static str),
    /// No bound: paths may be as long as the system allows.
    Unbounded,
}

/// Returns the general rule of the field's type, unless the field's own text specifies another.
fn measure(field: &FieldDescriptor) -> Measure {
    match field.full_name() {
        "csi.v1.GetPluginInfoResponse.name" => return Measure::Special("driver_name"),
        "csi.v1.Topology.segments" => return Measure::Special("segments"),
        "csi.v1.VolumeCapability.MountVolume.mount_flags" => return Measure::Total("MOUNT_FLAGS_MAX_BYTES"),
        _ => {}
    }
    match field.name() {
        "node_id" | "published_node_ids" => Measure::Bound("NODE_ID_MAX_BYTES"),
        "target_path" | "staging_target_path" | "volume_path" | "volume_publish_path" => Measure::Unbounded,
        _ if field.is_map() => Measure::Map,
        _ => Measure::Bound("STRING_MAX_BYTES"),
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
        return Err(CodegenError::Unmeasured { field: field.full_name().to_owned() });
    }
    if !textual {
        return Ok(String::new());
    }
    let mut call = String::new();
    let _ = match measure(field) {
        Measure::Bound(bound) if field.is_list() => {
            write!(call, "report.strings({name:?}, &self.{value}, {bound});")
        }
        Measure::Bound(bound) => write!(call, "report.string({name:?}, &self.{value}, {bound});"),
        Measure::Total(bound) => write!(call, "report.total({name:?}, &self.{value}, {bound});"),
        Measure::Map => write!(call, "report.map({name:?}, &self.{value});"),
        Measure::Special(rule) => write!(call, "report.{rule}({name:?}, &self.{value});"),
        Measure::Unbounded => Ok(()),
    };
    Ok(call)
}
