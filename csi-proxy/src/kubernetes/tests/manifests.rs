//! The manifests in `deploy/base/crd` agree with the objects that the store writes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

/// The lines of a manifest below a key, without comments.
///
/// This is not a YAML parser: a key has its value in the same line, or in lines with a larger indent.
#[derive(Debug, Clone)]
struct Block<'a>(Vec<&'a str>);

impl<'a> Block<'a> {
    fn indent(line: &str) -> usize {
        line.len() - line.trim_start_matches([' ', '-']).len()
    }

    fn key(line: &str) -> &str {
        line.trim_start_matches([' ', '-']).split(':').next().unwrap_or_default()
    }

    fn of(text: &'a str) -> Self {
        Self(text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect())
    }

    /// The lines below the first line with this key.
    fn below(&self, key: &str) -> Self {
        let at = self
            .0
            .iter()
            .position(|line| Self::key(line) == key)
            .unwrap_or_else(|| panic!("no {key}: {self:?}"));
        let indent = Self::indent(self.0[at]);
        Self(self.0[at + 1..].iter().copied().take_while(|line| Self::indent(line) > indent).collect())
    }

    /// The keys with the smallest indent.
    fn keys(&self) -> BTreeSet<&'a str> {
        let least = self.0.iter().map(|line| Self::indent(line)).min();
        self.0.iter().filter(|line| Some(Self::indent(line)) == least).map(|line| Self::key(line)).collect()
    }

    /// The value in the line of a key.
    fn value(&self, key: &str) -> &'a str {
        let line = self.0.iter().find(|line| Self::key(line) == key);
        line.and_then(|line| line.split_once(": ")).unwrap_or_else(|| panic!("no {key}: {self:?}")).1
    }

    /// The list in the line of a key.
    fn list(&self, key: &str) -> BTreeSet<&'a str> {
        self.value(key).trim_matches(['[', ']']).split(", ").collect()
    }
}

pub(super) fn manifest(plural: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/crd");
    let kustomization = fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
    assert!(kustomization.contains(&format!("- {plural}.yaml\n")));
    fs::read_to_string(folder.join(format!("{plural}.yaml"))).unwrap()
}

/// Checks group, version and names, and that each object has the fields of the schema. Returns the schema of the spec.
fn check<'a>(manifest: &'a str, plural: &str, objects: &[Value]) -> Block<'a> {
    let whole = Block::of(manifest);
    let (spec, names) = (whole.below("spec"), whole.below("names"));
    assert_eq!(whole.below("metadata").value("name"), format!("{plural}.{}", spec.value("group")));
    assert_eq!((names.value("plural"), spec.value("scope")), (plural, "Namespaced"));
    assert_eq!(names.value("listKind"), format!("{}List", names.value("kind")));
    let version = spec.below("versions").value("name");
    let schema = whole.below("openAPIV3Schema").below("properties").below("spec");
    let known = schema.below("properties").keys();
    let mut written = BTreeSet::new();
    for object in objects {
        assert_eq!(object["apiVersion"], format!("{}/{version}", spec.value("group")));
        assert_eq!(object["kind"], names.value("kind"));
        let fields: BTreeSet<&str> = object["spec"].as_object().unwrap().keys().map(String::as_str).collect();
        assert!(schema.list("required").is_subset(&fields), "{object}");
        assert!(fields.is_subset(&known), "{object}");
        written.extend(fields);
    }
    assert_eq!(written, known, "every field of the schema is written");
    let columns = whole.below("additionalPrinterColumns");
    let paths = columns.0.iter().filter_map(|line| line.trim().strip_prefix("jsonPath: .spec."));
    for path in paths {
        let field = path.split('.').next().unwrap();
        assert!(known.contains(field), "{path}");
    }
    schema.below("properties")
}

#[tokio::test]
async fn manifest_of_placements_fits_the_objects() {
    let api = FakeApi::default();
    let (store, id): (_, Box<str>) = (store(&api), "id".into());
    let keys = [
        Subject::VolumeName(id.clone()),
        Subject::Volume(id.clone()),
        Subject::Snapshot(id.clone()),
        Subject::GroupSnapshot(id.clone()),
    ];
    let statuses = [
        Status::Pending,
        Status::Created { id: id.clone() },
        Status::Deleted { id: id.clone(), at: UNIX_EPOCH },
        Status::Lost { id },
    ];
    for (key, status) in keys.into_iter().zip(statuses) {
        let placement = Some(Placement { status, ..pending("a") });
        let create = Change { key, expected: None, placement };
        assert!(matches!(store.write(&create).await.unwrap(), Written::Done(_)));
    }
    let (manifest, objects) = (manifest("placements"), api.objects("placements"));
    let fields = check(&manifest, "placements", &objects);
    for field in ["kind", "phase"] {
        let values: BTreeSet<&str> =
            objects.iter().map(|object| object["spec"][field].as_str().unwrap()).collect();
        assert_eq!(fields.below(field).list("enum"), values, "{field}");
    }
    for object in &objects {
        for (name, value) in object["spec"].as_object().unwrap() {
            assert_eq!((fields.below(name).value("type"), value.is_string()), ("string", true), "{name}");
        }
    }
    let max = |field: &str| fields.below(field).value("maxLength").parse::<usize>().unwrap();
    assert_eq!(
        (max("id"), max("handle")),
        (crate::advanced::call::MAX_SUBJECT, crate::advanced::call::MAX_SUBJECT)
    );
    assert_eq!((max("node"), max("driver")), (crate::advanced::call::MAX_NODE_ID, DriverName::MAX_BYTES));
}

#[tokio::test]
async fn manifest_of_driver_nodes_fits_the_objects() {
    let api = FakeApi::default();
    let store = store(&api);
    store.set_claim(&node("a"), Some(&claim())).await.unwrap();
    let (manifest, objects) = (manifest("drivernodes"), api.objects("drivernodes"));
    let fields = check(&manifest, "drivernodes", &objects);
    let claim: BTreeSet<&str> =
        objects[0]["spec"]["claim"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields.below("claim").below("properties").keys(), claim);
}
