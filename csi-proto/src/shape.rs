//! The positions of maps, secrets and messages in requests.
//!
//! Two encodings of one request may differ: Go writes the entries of a map in random order. To compare encoded requests,
//! including fields that these bindings do not know, the caller needs to know which fields are maps, which are secrets to omit,
//! and which are nested messages.

use crate::method::Method;

include!("generated/shapes.rs");

/// The fields of a message that need special treatment in a comparison. Other fields are compared as bytes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Shape {
    fields: &'static [(u32, Inside)],
}

/// The content of a length-delimited field.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Inside {
    /// A secret (option 1059).
    Secret,
    /// The entries of a map, in any order.
    Map,
    /// A message, or a list of messages in order.
    Message(&'static Shape),
}

impl Shape {
    /// The content of the field with this number; `None` for text, bytes, numbers and unknown fields.
    #[must_use]
    pub fn field(&self, number: u32) -> Option<Inside> {
        self.fields.iter().find(|(found, _)| *found == number).map(|(_, inside)| *inside)
    }

    /// The listed fields by number.
    pub fn fields(&self) -> impl Iterator<Item = (u32, Inside)> {
        self.fields.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nesting depth of messages.
    fn depth(shape: &Shape) -> usize {
        let inner = shape.fields().map(|(_, inside)| match inside {
            Inside::Message(inner) => depth(inner),
            Inside::Secret | Inside::Map => 0,
        });
        1 + inner.max().unwrap_or(0)
    }

    #[test]
    fn secrets_match_the_method_table() {
        for &method in Method::ALL {
            let shape = method.request_shape();
            let secrets: Vec<_> = shape
                .fields()
                .filter(|(_, inside)| matches!(inside, Inside::Secret))
                .map(|(n, _)| n)
                .collect();
            assert_eq!(secrets, Vec::from_iter(method.secrets_field().map(|field| field.number)), "{method}");
            assert!(depth(shape) <= 4, "{method}");
        }
    }

    #[test]
    fn knows_maps_and_messages_of_a_request() {
        let create = Method::CreateVolume.request_shape();
        assert!(matches!(create.field(4), Some(Inside::Map)), "parameters");
        assert!(create.field(1).is_none(), "name");
        let Some(Inside::Message(requirement)) = create.field(7) else {
            panic!("accessibility_requirements")
        };
        let Some(Inside::Message(topology)) = requirement.field(1) else { panic!("requisite") };
        assert!(matches!(topology.field(1), Some(Inside::Map)), "segments");
    }
}
