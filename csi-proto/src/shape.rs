//! Where a request holds maps, secrets and messages.
//!
//! Two encodings of one request may differ: Go writes the entries of a map in an order that it draws anew each time. Whoever
//! compares encoded requests, with the fields that these bindings do not know, needs to know which fields are maps, which
//! are secrets to leave out, and which are messages to look into.

use crate::method::Method;

include!("generated/shapes.rs");

/// What is to be known of a message to compare its encodings. Fields that are not listed are compared as they stand.
#[derive(Debug)]
#[non_exhaustive]
pub struct Shape {
    fields: &'static [(u32, Inside)],
}

/// What a length-delimited field holds.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Inside {
    /// A secret (option 1059).
    Secret,
    /// The entries of a map, whose order means nothing.
    Map,
    /// A message, or several in an order that counts.
    Message(&'static Shape),
}

impl Shape {
    /// What the field of this number holds; `None` for text, bytes, numbers and fields that this version does not have.
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

    /// How deep messages lie in each other.
    fn depth(shape: &Shape) -> usize {
        let inner = shape.fields().map(|(_, inside)| match inside {
            Inside::Message(inner) => depth(inner),
            Inside::Secret | Inside::Map => 0,
        });
        1 + inner.max().unwrap_or(0)
    }

    #[test]
    fn the_secrets_are_those_of_the_method_table_and_no_message_holds_itself() {
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
    fn maps_and_messages_of_a_request_are_known() {
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
