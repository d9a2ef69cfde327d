//! The public API of each library is listed in its `public-api.txt`, so that a review sees each change of it.
//!
//! `EDGE_CSI_WRITE_API=1 cargo test -p edge-csi-tests --test public_api -- --ignored` writes the files.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use edge_csi_tests::guide::root;

/// Each library with its features but `testing`, whose items are for tests.
const LIBRARIES: [(&str, &str); 4] = [
    ("csi-proto", "client,grpc,server"),
    ("edge-transport", "aws-lc-rs,metrics,quic,ring,runtime,tls,uds,ws"),
    ("csi-proxy", "edge-transport,metrics,redb,runtime"),
    ("volume-manager", "linux,metrics,redb,runtime"),
];

/// Generated from the schemas of other projects, which this project does not decide.
const NOT_OURS: [&str; 3] = ["::csi::v1::", "::generated::", "::pluginregistration::"];

#[test]
#[ignore = "compiles the documentation of the libraries as JSON"]
fn public_api_is_as_committed() {
    let mut changes = Vec::new();
    for (library, features) in LIBRARIES {
        let found = api_of(library, features);
        let file = root().join(library).join("public-api.txt");
        if std::env::var_os("EDGE_CSI_WRITE_API").is_some() {
            fs::write(&file, &found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        let (found, expected): (BTreeSet<_>, BTreeSet<_>) =
            (found.lines().collect(), expected.lines().collect());
        changes.extend(expected.difference(&found).map(|line| format!("{library}: - {line}")));
        changes.extend(found.difference(&expected).map(|line| format!("{library}: + {line}")));
    }
    let fix = "EDGE_CSI_WRITE_API=1 cargo test -p edge-csi-tests --test public_api -- --ignored";
    assert!(changes.is_empty(), "the public API has changed; `{fix}` records it:\n{}", changes.join("\n"));
}

/// Returns one line for each public item of a library, without generated code and derived implementations.
fn api_of(library: &str, features: &str) -> String {
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
    let json: PathBuf = root().join("target/doc").join(format!("{}.json", library.replace('-', "_")));
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .unwrap();
    let lines = api.items().map(ToString::to_string);
    let lines = lines.filter(|line| !NOT_OURS.iter().any(|path| line.contains(path)));
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}
