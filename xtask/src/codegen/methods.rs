//! The table of RPCs, from descriptors and [`facts`].

use heck::ToUpperCamelCase;
use std::fmt::Write as _;

use prost_reflect::{MessageDescriptor, MethodDescriptor};

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, facts, format};

pub(crate) fn generate(schema: &Schema) -> Result<Source, CodegenError> {
    let methods = schema.methods();
    let names: Vec<_> = methods.iter().map(|method| method.name().to_owned()).collect();
    if let Some(rpc) = facts::without_rpc(&names) {
        return Err(CodegenError::FactsWithoutRpc { rpc });
    }
    let (mut variants, mut all, mut rows, mut paths) =
        (String::new(), String::new(), String::new(), String::new());
    for method in &methods {
        let name = method.name();
        let path = format!("/{}/{name}", method.parent_service().full_name());
        let alpha = if schema.is_alpha(method) { " Alpha: a minor release may remove it." } else { "" };
        let _ = write!(variants, "/// `{path}`.{alpha}\n{name},");
        let _ = write!(all, "Self::{name},");
        let _ = write!(paths, "{path:?} => Some(Self::{name}),");
        rows.push_str(&row(schema, method, &path)?);
    }
    let count = methods.len();
    let text = format!(
        "/// An RPC of package `csi.v1`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Method {{ {variants} }}

        impl Method {{
            /// All {count} RPCs, in the order of the schema.
            pub const ALL: &'static [Self] = &[{all}];

            /// The method of a request path; `None` if this version of the spec has no such method.
            #[must_use]
            pub fn from_path(path: &str) -> Option<Self> {{
                match path {{ {paths} _ => None }}
            }}

            const fn facts(self) -> &'static Facts {{
                match self {{ {rows} }}
            }}
        }}"
    );
    format("method_table.rs", &text)
}

fn row(schema: &Schema, method: &MethodDescriptor, path: &str) -> Result<String, CodegenError> {
    let (rpc, request) = (method.name(), method.input());
    let facts = facts::of(rpc)?;
    let volume_key = match facts.volume_key {
        Some(name) => {
            let field = request_field(rpc, &request, name)?;
            format!("Some((VolumeKey::{}, {field}))", name.to_upper_camel_case())
        }
        None => "None".to_owned(),
    };
    let mut identity = String::new();
    for name in facts.identity {
        let _ = write!(identity, "{},", request_field(rpc, &request, name)?);
    }
    let secrets = match request.fields().find(|field| schema.is_secret(field)) {
        Some(field) => format!("Some({})", request_field(rpc, &request, field.name())?),
        None => "None".to_owned(),
    };
    let service = method.parent_service();
    let (service, streaming) = (service.name(), method.is_server_streaming());
    let (mutating, alpha) = (facts.mutating, schema.is_alpha(method));
    Ok(format!(
        "Self::{rpc} => &Facts {{ path: {path:?}, service: Service::{service}, server_streaming: {streaming},
            mutating: {mutating}, alpha: {alpha}, volume_key: {volume_key}, identity: &[{identity}], secrets: {secrets} }},"
    ))
}

fn request_field(rpc: &str, request: &MessageDescriptor, name: &'_ str) -> Result<String, CodegenError> {
    let field = request
        .get_field_by_name(name)
        .ok_or_else(|| CodegenError::FieldMissing { rpc: rpc.to_owned(), field: name.to_owned() })?;
    Ok(format!("RequestField {{ name: {name:?}, number: {} }}", field.number()))
}
