//! Maps a message's name to its type, for the tests that walk the schema.

use std::fmt::Write as _;

use super::error::CodegenError;
use super::schema::Schema;
use super::{Source, format, rust};

pub(crate) fn generate(schema: &Schema) -> Result<Source, CodegenError> {
    let mut arms = String::new();
    for message in schema.messages() {
        let path = rust::type_path(&message).replacen("crate::", "csi_proto::", 1);
        let _ = write!(arms, "{:?} => Some(visitor.visit::<{path}>()),", message.full_name());
    }
    let text = format!(
        "/// Visits the type of a message of package `csi.v1`; `None` if the name is unknown.
        pub(crate) fn visit<V: Visitor>(message: &str, visitor: V) -> Option<V::Output> {{
            match message {{ {arms} _ => None }}
        }}"
    );
    format("messages.rs", &text)
}
