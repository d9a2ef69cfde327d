//! The list of secret fields, and a `Debug` that never prints one.

use heck::ToUpperCamelCase;
use std::fmt::Write as _;

use prost_reflect::{FieldDescriptor, MessageDescriptor};

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, format, rust};

/// The field in which kubelet passes the service-account tokens of `tokenRequests`.
const TOKENS_FIELD: &str = "csi.v1.NodePublishVolumeRequest.volume_context";

pub(crate) fn generate(schema: &Schema) -> Result<Source, CodegenError> {
    let messages = schema.messages();
    let mut fields = String::new();
    let mut count = 0_usize;
    let mut impls = String::new();
    for message in &messages {
        for field in message.fields().filter(|field| schema.is_secret(field)) {
            count += 1;
            let (message, field) = (message.full_name(), field.name());
            let _ = write!(fields, "SecretField {{ message: {message:?}, field: {field:?} }},");
        }
        if schema.has_sensitive_field(message) {
            impls.push_str(&debug_impl(schema, message));
        }
    }
    let text = format!(
        "/// Every field that carries `csi_secret` (option 1059), in the order of the schema.\n\
         pub const SECRET_FIELDS: [SecretField; {count}] = [{fields}];\n{impls}"
    );
    format("secrets.rs", &text)
}

fn debug_impl(schema: &Schema, message: &MessageDescriptor) -> String {
    let mut calls = String::new();
    for field in message.fields() {
        let name = rust::field_name(&field);
        let value = shown(schema, &field, &name);
        let _ = write!(calls, ".field({:?}, {value})", field.name());
    }
    let path = rust::type_path(message);
    let name = message.name().to_upper_camel_case();
    format!(
        "impl ::core::fmt::Debug for {path} {{
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
                f.debug_struct({name:?}){calls}.finish()
            }}
        }}"
    )
}

fn shown(schema: &Schema, field: &FieldDescriptor, name: &str) -> String {
    if schema.is_sensitive(field) {
        format!("&Stripped::of(self.{name}.is_empty())")
    } else if field.full_name() == TOKENS_FIELD {
        format!("&WithoutTokens(&self.{name})")
    } else {
        format!("&self.{name}")
    }
}
