//! The names that prost gives to what the schema names.

use prost_reflect::{FieldDescriptor, MessageDescriptor, OneofDescriptor};

/// The path of a message's type from the crate's root: `crate::csi::v1::volume_capability::MountVolume`.
pub(crate) fn type_path(message: &MessageDescriptor) -> String {
    let inside = message.full_name().trim_start_matches(message.package_name()).trim_start_matches('.');
    let mut path = format!("crate::{}", message.package_name().replace('.', "::"));
    let mut names = inside.split('.').peekable();
    while let Some(name) = names.next() {
        path.push_str("::");
        path.push_str(&if names.peek().is_some() { snake_case(name) } else { camel_case(name) });
    }
    path
}

/// The path of a oneof's variant from the crate's root.
pub(crate) fn oneof_variant(
    message: &MessageDescriptor,
    oneof: &OneofDescriptor,
    field: &FieldDescriptor,
) -> String {
    let mut path = type_path(message);
    path.truncate(path.len() - camel_case(message.name()).len());
    let module = snake_case(message.name());
    format!("{path}{module}::{}::{}", camel_case(oneof.name()), camel_case(field.name()))
}

/// The name of a field in its struct.
pub(crate) fn field_name(field: &FieldDescriptor) -> String {
    escape(field.name())
}

/// A name as Rust code may write it.
pub(crate) fn escape(name: &str) -> String {
    if name == "type" { format!("r#{name}") } else { name.to_owned() }
}

/// `GetPluginInfo` to `get_plugin_info`, `RPC` to `rpc`.
pub(crate) fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let after_lower = at > 0 && !letters[at - 1].is_uppercase();
        let before_lower = at > 0 && letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if letter.is_uppercase() && (after_lower || before_lower) {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// `RPC` to `Rpc`, `volume_id` to `VolumeId`; names already in camel case stay.
pub(crate) fn camel_case(name: &str) -> String {
    let mut out = String::new();
    for word in snake_case(name).split('_') {
        let mut letters = word.chars();
        out.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        out.push_str(letters.as_str());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{camel_case, snake_case};

    #[test]
    fn names_follow_prost() {
        for (name, snake, camel) in [
            ("RPC", "rpc", "Rpc"),
            ("GetPluginInfo", "get_plugin_info", "GetPluginInfo"),
            ("ControllerServiceCapability", "controller_service_capability", "ControllerServiceCapability"),
        ] {
            assert_eq!(snake_case(name), snake);
            assert_eq!(camel_case(name), camel);
        }
    }
}
