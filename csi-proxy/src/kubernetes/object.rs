//! What all objects of this crate have in common: group, version, label and name.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use csi_proto::DriverName;
use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::routing::Revision;

/// The API group.
pub(super) const GROUP: &str = "edge-csi.io";
/// The version of the API.
pub(super) const VERSION: &str = "v1alpha1";
/// The label with the driver's name, by which a proxy lists its objects.
pub(super) const DRIVER_LABEL: &str = "edge-csi.io/driver";

/// A kind of custom resource.
pub(super) trait Kind: fmt::Debug + Clone + Send + Sync + 'static {
    /// The kind.
    const KIND: &'static str;
    /// The resource in URLs.
    const PLURAL: &'static str;
}

/// An object of a custom resource. The spec is decoded separately, so that a list with one invalid object can be read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "camelCase")]
pub(super) struct Object<K: Kind> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
    #[serde(skip)]
    of: PhantomData<K>,
}

impl<K: Kind> Object<K> {
    /// Creates an object of a driver.
    pub(super) fn new(driver: &DriverName, name: String, spec: Value) -> Self {
        let labels = [(DRIVER_LABEL.to_owned(), driver.to_string())].into();
        let metadata = ObjectMeta { name: Some(name), labels: Some(labels), ..ObjectMeta::default() };
        Self {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: K::KIND.to_owned(),
            metadata,
            spec,
            of: PhantomData,
        }
    }

    /// The name of the object.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The version of the object.
    pub(super) fn version(&self) -> Version {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Version { resource_version: text(&self.metadata.resource_version), uid: text(&self.metadata.uid) }
    }

    /// Sets which version of the object a replacement replaces.
    pub(super) fn replacing(mut self, version: Version) -> Self {
        self.metadata.resource_version = Some(version.resource_version);
        self.metadata.uid = Some(version.uid);
        self
    }
}

impl<K: Kind> Resource for Object<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The version of an object. The UID too, since a restored API server may use a `resourceVersion` again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) resource_version: String,
    pub(super) uid: String,
}

impl From<Version> for Revision {
    fn from(version: Version) -> Self {
        Self(format!("{}/{}", version.resource_version, version.uid).into())
    }
}

impl Version {
    /// From the revision of a row. A revision of another store matches no object.
    pub(super) fn of(revision: &Revision) -> Self {
        let (version, uid) = revision.0.split_once('/').unwrap_or((&revision.0, ""));
        Self { resource_version: version.to_owned(), uid: uid.to_owned() }
    }
}

/// The name of an object from what identifies it, in hexadecimal: ids have characters and lengths that names do not allow.
pub(super) fn hashed_name<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        // With its length, so that different parts never have the same text.
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_differ() {
        let name = hashed_name(["a", "bc"]);
        assert_eq!(name.len(), 64);
        assert!(name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
        assert_ne!(name, hashed_name(["ab", "c"]));
    }

    #[test]
    fn revision_round_trips() {
        let version = Version { resource_version: "12".to_owned(), uid: "a-b".to_owned() };
        assert_eq!(Version::of(&Revision::from(version.clone())), version);
    }
}
