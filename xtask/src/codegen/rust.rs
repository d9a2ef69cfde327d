//! The names that prost derives from the schema.

use heck::{ToSnakeCase, ToUpperCamelCase};
use prost_reflect::{FieldDescriptor, MessageDescriptor, OneofDescriptor};

/// Returns the path of a message's type from the crate's root: `crate::csi::v1::volume_capability::MountVolume`.
pub(crate) fn type_path(message: &MessageDescriptor) -> String {
    let inside = message.full_name().trim_start_matches(message.package_name()).trim_start_matches('.');
    let mut path = format!("crate::{}", message.package_name().replace('.', "::"));
    let mut names = inside.split('.').peekable();
    while let Some(name) = names.next() {
        path.push_str("::");
        path.push_str(&if names.peek().is_some() {
            name.to_snake_case()
        } else {
            name.to_upper_camel_case()
        });
    }
    path
}

/// Returns the path of a oneof's variant from the crate's root.
pub(crate) fn oneof_variant(
    message: &MessageDescriptor,
    oneof: &OneofDescriptor,
    field: &FieldDescriptor,
) -> String {
    let mut path = type_path(message);
    path.truncate(path.len() - message.name().to_upper_camel_case().len());
    let module = message.name().to_snake_case();
    format!("{path}{module}::{}::{}", oneof.name().to_upper_camel_case(), field.name().to_upper_camel_case())
}

/// Returns the name of a field in its struct.
pub(crate) fn field_name(field: &FieldDescriptor) -> String {
    escape(field.name())
}

/// Escapes a name for Rust code.
pub(crate) fn escape(name: &str) -> String {
    if name == "type" { format!("r#{name}") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use heck::{ToSnakeCase as _, ToUpperCamelCase as _};

    #[test]
    fn names_follow_prost() {
        for (name, snake, camel) in [
            ("RPC", "rpc", "Rpc"),
            ("GetPluginInfo", "get_plugin_info", "GetPluginInfo"),
            ("ControllerServiceCapability", "controller_service_capability", "ControllerServiceCapability"),
        ] {
            assert_eq!(name.to_snake_case(), snake);
            assert_eq!(name.to_upper_camel_case(), camel);
        }
    }
}
