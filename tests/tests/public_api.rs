//! The public API of each library is listed in its `public-api.txt`, so that a review sees each change of it.
//!
//! `EDGE_CSI_WRITE_API=1 cargo test -p edge-csi-tests --test public_api -- --ignored` writes the files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::api::{STANDARD, Version, changes, check_version, dependencies, item};
use edge_csi_tests::guide::root;
use serde_json::Value;

/// Each library with its features but `testing`, whose items are for tests, and the number of public types that it may have.
const LIBRARIES: [(&str, &str, usize); 4] = [
    ("csi-proto", "client,grpc,server", 37),
    ("edge-transport", "aws-lc-rs,metrics,quic,ring,runtime,tls,uds,ws", 60),
    ("csi-proxy", "edge-transport,metrics,redb,runtime", 60),
    ("volume-manager", "linux,metrics,redb,runtime", 110),
];

/// Generated from the schemas of other projects, which this project does not decide.
const NOT_OURS: [&str; 3] = ["::csi::v1::", "::generated::", "::pluginregistration::"];

/// Where no promise is made, or only to tests.
const NOT_COUNTED: [&str; 2] = ["::advanced::", "::testing::"];

/// The lists are as committed, no library has too many public types, and `RELEASING.md` names the crates whose types users see.
#[test]
#[ignore = "compiles the documentation of the libraries as JSON"]
fn public_api_is_as_committed() {
    let releasing = fs::read_to_string(root().join("RELEASING.md")).unwrap();
    let mut wrong = Vec::new();
    for (library, features, ceiling) in LIBRARIES {
        let api = Api::of(library, features);
        let file = root().join(library).join("public-api.txt");
        if std::env::var_os("EDGE_CSI_WRITE_API").is_some() {
            fs::write(&file, &api.list).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        wrong.extend(changes(&expected, &api.list).into_iter().map(|(_, line)| format!("{library}: {line}")));
        if api.types.len() > ceiling {
            wrong.push(format!("{library}: {} of at most {ceiling} public types:", api.types.len()));
            wrong.extend(api.types);
        }
        if !releasing.lines().any(|line| line == api.row) {
            wrong.push(format!("RELEASING.md does not have the line {}", api.row));
        }
    }
    let fix = "EDGE_CSI_WRITE_API=1 cargo test -p edge-csi-tests --test public_api -- --ignored";
    assert!(wrong.is_empty(), "the public API has changed; `{fix}` records it:\n{}", wrong.join("\n"));
}

/// Once `Cargo.toml` has another version than the last tag, that version allows what has changed.
#[test]
fn the_version_fits_the_changed_lines() {
    check_version(root()).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// The public API of a library.
struct Api {
    /// One line for each crate whose items it names, and one for each public item, without generated code and derived
    /// implementations.
    list: String,
    /// The structs, enums, traits and type aliases, once each, whatever the number of their paths.
    types: Vec<String>,
    /// The row of the table in `RELEASING.md`: the library and the crates whose items it names.
    row: String,
}

impl Api {
    /// Returns the public API of a library with these features.
    fn of(library: &str, features: &str) -> Self {
        let json = document(library, features);
        let api = public_api::Builder::from_rustdoc_json(&json)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build()
            .unwrap();
        let lines: Vec<String> = api.items().map(ToString::to_string).collect();
        let mut crates = dependencies(library, &lines.join("\n"));
        crates.extend(reexported(&json));
        let crates: Vec<String> = crates.iter().map(|name| with_version(name)).collect();

        let is_ours = |line: &str| !NOT_OURS.iter().any(|path| line.contains(path));
        let mut list: String = crates.iter().map(|it| format!("extern crate {it}\n")).collect();
        for line in lines.iter().filter(|line| is_ours(line)) {
            list.extend([line, "\n"]);
        }
        let modules: BTreeSet<&str> = lines.iter().filter_map(|line| line.strip_prefix("pub mod ")).collect();
        let types = api.items().map(|it| (it.id(), it.to_string())).filter(|(_, line)| {
            is_ours(line) && !NOT_COUNTED.iter().any(|path| line.contains(path)) && is_type(line, &modules)
        });
        let types: BTreeMap<_, _> = types.collect();
        let row = format!("| {library} | {} |", crates.join(", "));
        Self { list, types: types.into_values().collect(), row }
    }
}

/// Writes the documentation of a library as JSON, and returns its path.
fn document(library: &str, features: &str) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["rustdoc", "--locked", "--lib", "--no-default-features"])
        .args(["--features", features, "--package", library])
        .args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"])
        // The JSON output of rustdoc is unstable; this variable enables it in the stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    root().join("target/doc").join(format!("{}.json", library.replace('-', "_")))
}

/// Returns the crates whose items a library has under a path of its own, which the list does not show.
fn reexported(json: &Path) -> BTreeSet<String> {
    let json: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let uses = json["index"].as_object().unwrap().values().filter(|item| item["visibility"] == "public");
    let paths = uses.filter_map(|item| json["paths"].get(item["inner"]["use"]["id"].as_u64()?.to_string()));
    let crates = paths.filter_map(|path| json["external_crates"].get(path["crate_id"].to_string()));
    let names = crates.filter_map(|it| it["name"].as_str()).filter(|name| !STANDARD.contains(name));
    names.map(str::to_owned).collect()
}

/// Returns the name of a crate in `Cargo.lock` with the part of its version that compatible versions share. The libraries
/// have no version of their own.
fn with_version(name: &str) -> String {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut found = BTreeSet::new();
    for package in lock.split("[[package]]") {
        let value = |key| package.lines().find_map(|line| line.strip_prefix(key)?.strip_suffix('"'));
        let Some(package) = value("name = \"").filter(|it| it.replace('-', "_") == name) else { continue };
        let version = value("source = \"").and_then(|_| Version::parse(value("version = \"")?));
        found.insert(
            version.map_or_else(|| package.to_owned(), |it| format!("{package} {}", it.compatible())),
        );
    }
    assert!(!found.is_empty(), "{name} is not in Cargo.lock");
    Vec::from_iter(found).join(", ")
}

/// Whether a line is a struct, enum, trait or type alias in one of the modules. An associated type is in none.
fn is_type(line: &str, modules: &BTreeSet<&str>) -> bool {
    let Some((words, path)) = item(line) else { return false };
    let kind = words.rsplit(' ').next().unwrap_or_default();
    let is_in_module = path.rsplit_once("::").is_some_and(|(module, _)| modules.contains(module));
    ["struct", "enum", "trait", "type"].contains(&kind) && is_in_module
}
