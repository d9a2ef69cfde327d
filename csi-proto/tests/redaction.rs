//! Secrets are never printed: every message of the schema is built with a canary in each sensitive field, and formatted.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeSet;
use std::fmt::Debug;

use csi_proto::secrets::SECRET_FIELDS;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value, prost::Message,
};

mod dispatch;
mod schema;

const CANARY: &str = "canary-4f1d";
const SHOWN: &str = "shown-77ab";
const STRIPPED: &str = "***stripped***";
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
const MOUNT_FLAGS: &str = "csi.v1.VolumeCapability.MountVolume.mount_flags";
const PUBLISH_CONTEXT: &str = "csi.v1.NodePublishVolumeRequest.volume_context";

/// Decodes the type behind a name and formats it, plainly and with line breaks.
struct Format(Vec<u8>);

impl dispatch::Visitor for Format {
    type Output = [String; 2];

    fn visit<M: Message + Default + Debug>(self) -> [String; 2] {
        let message = M::decode(self.0.as_slice()).expect("what the schema encodes, the type decodes");
        [format!("{message:?}"), format!("{message:#?}")]
    }
}

#[test]
fn the_secret_fields_are_the_22_of_the_schema() {
    let pool = schema::compile();
    let found: BTreeSet<_> = schema::messages(&pool)
        .iter()
        .flat_map(MessageDescriptor::fields)
        .filter(|field| is_secret(&pool, field))
        .map(|field| field.full_name().to_owned())
        .collect();
    let listed: BTreeSet<_> =
        SECRET_FIELDS.iter().map(|secret| format!("{}.{}", secret.message, secret.field)).collect();
    assert_eq!(found, listed);
    assert_eq!((found.len(), SECRET_FIELDS.len()), (22, 22));
}

#[test]
fn no_message_prints_a_secret() {
    let pool = schema::compile();
    let mut with_canary = 0;
    for descriptor in schema::messages(&pool) {
        // A oneof holds one choice at a time: each message is built once for each.
        for choice in 0..2 {
            let mut canaries = 0;
            let message = fill(&pool, &descriptor, choice, &mut canaries);
            with_canary += canaries;
            let name = descriptor.full_name();
            let texts = dispatch::visit(name, Format(message.encode_to_vec()));
            for text in texts.unwrap_or_else(|| panic!("{name} is missing in the generated dispatch")) {
                assert!(!text.contains(CANARY), "{name} prints a secret: {text}");
                assert_eq!(text.matches(STRIPPED).count(), canaries, "{name}: {text}");
                assert_eq!(text.contains(SHOWN), format!("{message:?}").contains(SHOWN), "{name}: {text}");
            }
        }
    }
    assert!(with_canary >= 2 * (22 + 2), "the walk found only {with_canary} sensitive places");
}

/// A message with every field set, sensitive ones to the canary; counts the places where it must be stripped.
fn fill(
    pool: &DescriptorPool,
    descriptor: &MessageDescriptor,
    choice: usize,
    canaries: &mut usize,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if let Some(oneof) = field.containing_oneof() {
            let choices: Vec<_> = oneof.fields().map(|field| field.number()).collect();
            if choices[choice % choices.len()] != field.number() {
                continue;
            }
        }
        let sensitive = is_secret(pool, &field) || field.full_name() == MOUNT_FLAGS;
        if sensitive {
            *canaries += 1;
        }
        let text = Value::String(if sensitive { CANARY } else { SHOWN }.to_owned());
        let value = if field.is_map() {
            let mut entries = vec![(MapKey::String(if sensitive { CANARY } else { SHOWN }.to_owned()), text)];
            if field.full_name() == PUBLISH_CONTEXT {
                *canaries += 1;
                entries.push((MapKey::String(TOKENS.to_owned()), Value::String(CANARY.to_owned())));
            }
            Value::Map(entries.into_iter().collect())
        } else {
            let one = match field.kind() {
                Kind::String => text,
                Kind::Message(inner) if inner.package_name() == "csi.v1" => {
                    Value::Message(fill(pool, &inner, choice, canaries))
                }
                Kind::Message(inner) => Value::Message(DynamicMessage::new(inner)),
                Kind::Enum(_) => Value::EnumNumber(1),
                kind => Value::default_value(&kind),
            };
            if field.is_list() { Value::List(vec![one]) } else { one }
        };
        message.set_field(&field, value);
    }
    message
}

fn is_secret(pool: &DescriptorPool, field: &FieldDescriptor) -> bool {
    let option = pool.all_extensions().find(|option| option.full_name() == "csi.v1.csi_secret");
    let option = option.expect("the schema defines csi_secret");
    matches!(field.options().get_extension(&option).as_ref(), Value::Bool(true))
}
