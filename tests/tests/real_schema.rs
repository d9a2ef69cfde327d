//! Our schema against the official one, taken from the Go modules that Kubernetes itself is built of: packages, imports,
//! messages, fields, enums, options, reserved ranges, services.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind,
    MessageDescriptor, ServiceDescriptor,
};

const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../csi-proto/proto");
const CSI: &str = "csi/v1/csi.proto";
const REGISTRATION: &str = "pluginregistration/v1/api.proto";

#[test]
#[ignore = "needs Go modules"]
fn the_csi_schema_is_that_of_the_spec() {
    let module = go_module("github.com/container-storage-interface/spec@v1.13.0");
    let official = facts(&module, "csi.proto");
    assert_eq!(official.keys().filter(|fact| fact.starts_with("rpc ")).count(), 36);
    assert_same(&facts(Path::new(PROTO), CSI), &official);
}

#[test]
#[ignore = "needs Go modules"]
fn the_registration_schema_is_that_of_the_kubelet() {
    let module = go_module("k8s.io/kubelet@v0.36.3");
    let official = facts(&module.join("pkg/apis/pluginregistration/v1"), "api.proto");
    assert_eq!(official.keys().filter(|fact| fact.starts_with("rpc ")).count(), 2);
    assert_same(&facts(Path::new(PROTO), REGISTRATION), &official);
}

#[test]
fn a_change_of_any_kind_is_a_difference() {
    let text = fs::read_to_string(Path::new(PROTO).join(CSI)).expect("the schema is readable");
    let original = facts(Path::new(PROTO), CSI);
    for (from, to) in [
        ("package csi.v1;", "package csi.v2;"),
        ("spec/lib/go/csi\"", "spec/lib/go/csi2\""),
        ("bool csi_secret = 1059;", "bool csi_secret = 1058;"),
        ("bool alpha_enum = 1060;", "string alpha_enum = 1060;"),
        ("string vendor_version = 2;", "string vendor_version = 4;"),
        ("string vendor_version = 2;", "string vendor_versions = 2;"),
        ("string vendor_version = 2;", "bytes vendor_version = 2;"),
        ("string vendor_version = 2;", "repeated string vendor_version = 2;"),
        ("string vendor_version = 2;", "optional string vendor_version = 2;"),
        ("map<string, string> manifest = 3;", "map<string, bytes> manifest = 3;"),
        ("secrets = 5 [(csi_secret) = true];", "secrets = 5;"),
        ("[(csi_secret) = true, (alpha_field) = true]", "[(csi_secret) = true]"),
        ("reserved 11;", ""),
        ("reserved 2;", "reserved 2 to 3;"),
        ("CLONE_VOLUME = 7;", "CLONE_VOLUME = 77;"),
        ("GET_SNAPSHOT = 15 [(alpha_enum_value) = true];", "GET_SNAPSHOT = 15;"),
        ("MountVolume mount = 2;\n  }", "}\n  MountVolume mount = 2;"),
        ("  option (alpha_service) = true;", ""),
        ("  option (alpha_message) = true;", ""),
        ("    option (alpha_method) = true;", ""),
        ("returns (stream GetMetadataDeltaResponse)", "returns (GetMetadataDeltaResponse)"),
        ("rpc Probe(ProbeRequest)", "rpc Probe(stream ProbeRequest)"),
        ("rpc Probe(ProbeRequest)", "rpc Probe(GetPluginInfoRequest)"),
        ("message DeleteVolumeResponse {}", "message DeleteVolumeResponse {}\nmessage Another {}"),
    ] {
        assert!(text.contains(from), "{from:?} is not in the schema: correct the table");
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("csi.proto"), text.replacen(from, to, 1))
            .expect("the folder is writable");
        let changed = facts(folder.path(), "csi.proto");
        assert!(!differences(&changed, &original).is_empty(), "{from:?} to {to:?} goes unseen");
    }
}

/// The facts of the schema: for each key its subject and all its properties.
type Facts = BTreeMap<String, String>;

fn assert_same(known: &Facts, official: &Facts) {
    let differences = differences(known, official);
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

fn differences(known: &Facts, official: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    for (about, said) in official {
        match known.get(about) {
            None => found.push(format!("missing: {about} ({said})")),
            Some(our) if our != said => found.push(format!("{about}: known ({our}), official ({said})")),
            Some(_) => {}
        }
    }
    let extra = known.keys().filter(|about| !official.contains_key(*about));
    found.extend(extra.map(|about| format!("not official: {about}")));
    found
}

/// The folder of a Go module, downloaded if it is not in Go's cache.
fn go_module(module: &str) -> PathBuf {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .env("GOFLAGS", "-mod=mod")
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap_or_else(|cause| panic!("go does not start: {cause}; install Go"));
    assert!(output.status.success(), "go mod download {module}: {}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("go answers in JSON");
    answer["Dir"].as_str().expect("go names the module's folder").into()
}

fn facts(folder: &Path, name: &str) -> Facts {
    let mut compiler = protox::Compiler::new([folder]).expect("the folder exists");
    compiler.include_imports(true);
    compiler.open_file(name).unwrap_or_else(|cause| panic!("{name} does not compile: {cause}"));
    let pool: DescriptorPool = compiler.descriptor_pool();
    let file = pool.get_file_by_name(name).expect("the compiled file is in the pool");

    let mut facts = Facts::new();
    file_facts(&file, &mut facts);
    for extension in file.extensions() {
        let (extendee, kind) = (extension.containing_message(), extension.kind());
        facts.insert(
            format!("extension {} {}", extendee.full_name(), extension.number()),
            format!("{} {kind:?} {:?}", extension.full_name(), extension.cardinality()),
        );
    }
    for message in file.messages() {
        message_facts(&message, &mut facts);
    }
    for enumeration in file.enums() {
        enum_facts(&enumeration, &mut facts);
    }
    for service in file.services() {
        service_facts(&service, &mut facts);
    }
    facts
}

fn file_facts(file: &FileDescriptor, facts: &mut Facts) {
    let mut imports: Vec<_> = file.dependencies().map(|import| import.name().to_owned()).collect();
    imports.sort();
    let said =
        format!("{:?} {} {imports:?} {}", file.syntax(), file.package_name(), options(&file.options()));
    facts.insert("file".to_owned(), said);
}

fn message_facts(message: &MessageDescriptor, facts: &mut Facts) {
    let name = message.full_name();
    let reserved: Vec<_> = message.reserved_ranges().collect();
    let names: Vec<_> = message.reserved_names().collect();
    let said = format!("reserved {reserved:?} {names:?} {}", options(&message.options()));
    facts.insert(format!("message {name}"), said);
    for field in message.fields() {
        facts.insert(format!("field {name} {}", field.number()), field_facts(&field));
    }
    for nested in message.child_messages() {
        message_facts(&nested, facts);
    }
    for nested in message.child_enums() {
        enum_facts(&nested, facts);
    }
}

fn field_facts(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        Kind::Message(message) => format!("message {}", message.full_name()),
        Kind::Enum(enumeration) => format!("enum {}", enumeration.full_name()),
        scalar => format!("{scalar:?}"),
    };
    let label = match field.cardinality() {
        _ if field.is_map() => "map",
        Cardinality::Optional => "optional",
        Cardinality::Required => "required",
        Cardinality::Repeated => "repeated",
    };
    let oneof = field.containing_oneof().map(|oneof| oneof.name().to_owned());
    format!(
        "{} {} {kind} {label} presence {} packed {} oneof {oneof:?} {}",
        field.name(),
        field.json_name(),
        field.supports_presence(),
        field.is_packed(),
        options(&field.options())
    )
}

fn enum_facts(enumeration: &EnumDescriptor, facts: &mut Facts) {
    let name = enumeration.full_name();
    let reserved: Vec<_> = enumeration.reserved_ranges().collect();
    let names: Vec<_> = enumeration.reserved_names().collect();
    let said = format!("reserved {reserved:?} {names:?} {}", options(&enumeration.options()));
    facts.insert(format!("enum {name}"), said);
    for value in enumeration.values() {
        let said = format!("{} {}", value.number(), options(&value.options()));
        facts.insert(format!("enum value {name} {}", value.name()), said);
    }
}

fn service_facts(service: &ServiceDescriptor, facts: &mut Facts) {
    let name = service.full_name();
    facts.insert(format!("service {name}"), options(&service.options()));
    for method in service.methods() {
        let said = format!(
            "{} streaming {} to {} streaming {} {}",
            method.input().full_name(),
            method.is_client_streaming(),
            method.output().full_name(),
            method.is_server_streaming(),
            options(&method.options())
        );
        facts.insert(format!("rpc {name} {}", method.name()), said);
    }
}

/// All options that are set, those of the file's own definition among them.
fn options(options: &DynamicMessage) -> String {
    let own =
        options.extensions().map(|(option, value)| (option.number(), option.full_name().to_owned(), value));
    let standard = options.fields().map(|(option, value)| (option.number(), option.name().to_owned(), value));
    let mut set: Vec<_> =
        own.chain(standard).map(|(number, name, value)| format!("{number} {name} {value:?}")).collect();
    set.sort();
    set.extend(options.unknown_fields().map(|field| format!("unknown option {}", field.number())));
    format!("options {set:?}")
}
