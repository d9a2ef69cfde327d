//! The fields of a request that contain maps, secrets and messages, for the comparison of encoded requests.

use heck::ToSnakeCase;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_reflect::{Kind, MessageDescriptor};

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, format};

pub(crate) fn generate(schema: &Schema) -> Result<Source, CodegenError> {
    let mut shapes = BTreeMap::new();
    let mut rows = String::new();
    for method in schema.methods() {
        let request = method.input();
        collect(schema, &request, &mut shapes);
        let _ = write!(rows, "Self::{} => &{},", method.name(), constant(&request));
    }
    let shapes: String = shapes.into_values().collect();
    let text = format!(
        "{shapes}
        impl Method {{
            /// The shape of the RPC's request message.
            #[must_use]
            pub fn request_shape(self) -> &'static Shape {{
                match self {{ {rows} }}
            }}
        }}"
    );
    format("shapes.rs", &text)
}

fn collect(schema: &Schema, message: &MessageDescriptor, into: &mut BTreeMap<String, String>) {
    let name = constant(message);
    if into.contains_key(&name) {
        return;
    }
    // A placeholder, in case a message contains itself.
    into.insert(name.clone(), String::new());
    let mut fields = String::new();
    for field in message.fields() {
        let inside = match field.kind() {
            _ if schema.is_secret(&field) => "Inside::Secret".to_owned(),
            _ if field.is_map() => "Inside::Map".to_owned(),
            Kind::Message(inner) if inner.package_name() == message.package_name() => {
                collect(schema, &inner, into);
                format!("Inside::Message(&{})", constant(&inner))
            }
            _ => continue,
        };
        let _ = write!(fields, "({}, {inside}),", field.number());
    }
    into.insert(name.clone(), format!("static {name}: Shape = Shape {{ fields: &[{fields}] }};"));
}

fn constant(message: &MessageDescriptor) -> String {
    let inside = message.full_name().trim_start_matches(message.package_name()).trim_start_matches('.');
    let words: Vec<_> = inside.split('.').map(str::to_snake_case).collect();
    words.join("_").to_uppercase()
}
