//! The commands of the guide do what it says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::binaries;
use edge_csi_tests::command_line::{PROGRAMS, accepts};
use edge_csi_tests::guide::{Mark, blocks_of, commands_of, pages, root};

/// Options with a value that only a build with the feature `kubernetes` takes.
const OF_A_FEATURE: [&str; 2] = ["--kubeconfig", "--kubelet-dir"];

#[test]
fn every_option_of_our_programs_in_the_guide_exists_and_takes_what_it_is_given() {
    let (mut read, mut wrong) = (0, Vec::new());
    for block in pages().iter().flat_map(|page| blocks_of(page)) {
        for (program, mut arguments) in commands_of(&block.text, &PROGRAMS) {
            read += 1;
            for option in OF_A_FEATURE {
                if let Some(at) = arguments.iter().position(|argument| argument == option) {
                    arguments.drain(at..(at + 2).min(arguments.len()));
                }
            }
            wrong.extend(accepts(&program, &arguments).err().map(|said| format!("{}: {said}", block.place)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 10, "{read} commands were found");
}

#[test]
fn the_shell_understands_every_block_of_the_guide() {
    for block in pages().iter().flat_map(|page| blocks_of(page)) {
        let checked = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
        assert!(checked.status.success(), "{}: {}", block.place, String::from_utf8_lossy(&checked.stderr));
    }
}

/// Every file of the repository that a command names is there.
#[test]
fn every_file_that_a_block_of_the_guide_names_exists() {
    for block in pages().iter().flat_map(|page| blocks_of(page)) {
        for word in block.text.split(|c: char| c.is_whitespace() || c == '=') {
            if word.starts_with("deploy/") {
                assert!(root().join(word).exists(), "{}: {word} does not exist", block.place);
            }
        }
    }
}

/// Blocks that nothing runs and that start none of our programs, by what they begin with, and why that has to be so.
const FOR_READERS: [(&str, &str); 4] = [
    ("kubectl exec edge-csi-controller-0 ", "wants a node that is lost"),
    ("for program in edge-hub edge-agent", "wants a container builder and a registry"),
    ("node-driver-registrar ", "the manifests start it, with these options"),
    (
        "GOBIN=$dir go install github.com/kubernetes-csi/csi-test",
        "the test `drivers` runs it, so against one node",
    ),
];

/// A page whose blocks for nodes nothing runs.
const WITHOUT_NODES: (&str, &str) = ("static.md", "wants a kernel with NFS and a server of it");

#[test]
fn no_block_of_the_guide_is_run_by_nobody() {
    let source = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let (tests, live, pods) = (
        source("tests/tests/guide.rs"),
        source("tests/e2e/deploy/live.sh"),
        source("tests/e2e/deploy/pods.sh"),
    );
    let mut forgotten = Vec::new();
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        for block in blocks_of(&page) {
            // What is away is run with that option alone, and nothing else is run with it.
            let by_script = |script: &str| {
                script.lines().any(|line| {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    words.first() == Some(&"guide")
                        && words.contains(&name.as_str())
                        && words.contains(&"--away") == block.away
                })
            };
            let run = match block.mark {
                Mark::Run => tests.contains(&format!("runs(\"{name}\")")) || by_script(&live),
                Mark::Cluster => by_script(&live) && by_script(&pods),
                Mark::Nodes => by_script(&pods) || name == WITHOUT_NODES.0,
                // Its options are held against the program.
                _ => {
                    !commands_of(&block.text, &PROGRAMS).is_empty()
                        || FOR_READERS.iter().any(|(begin, _)| block.text.starts_with(begin))
                }
            };
            if !run {
                forgotten.push(block.place);
            }
        }
    }
    assert!(forgotten.is_empty(), "nobody runs {}", forgotten.join(", "));
}

/// The sources of the repository below these folders, in one text.
fn sources(folders: &[&str]) -> String {
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut text = String::new();
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    text
}

/// The page on recovery names for each drill the test that makes it, and for each alert its metric.
#[test]
fn every_test_and_every_metric_that_the_guide_names_exists() {
    let text = sources(&["tests", "csi-proxy", "edge-transport", "examples", "volume-manager"]);
    let (mut tests, mut metrics) = (0, 0);
    for page in ["operating.md", "relay-or-node-deployment.md"] {
        let page = std::fs::read_to_string(root().join("docs/src").join(page)).unwrap();
        for word in page.split('`').filter(|word| word.len() > 15 && word.contains('_')) {
            if !word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
                continue;
            }
            if ["csi_plugin_", "edge_csi_", "edge_transport_"].iter().any(|prefix| word.starts_with(prefix)) {
                metrics += 1;
                assert!(text.contains(&format!("\"{word}\"")), "there is no metric {word}");
            } else {
                tests += 1;
                assert!(text.contains(&format!("fn {word}(")), "there is no test {word}");
            }
        }
    }
    assert!(tests > 15 && metrics > 5, "{tests} tests, {metrics} metrics");
}

/// What stands before a page's own commands. `cargo` has done its part when the tests run.
const PROLOGUE: &str = r#"
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT
cargo() { case "$*" in "build "*) ;; "run -p "*) "target/debug/${@: -1}" ;; *) return 1 ;; esac; }
"#;

/// A port for each of those that pages name, since something else may have those here.
fn with_own_ports(text: &str) -> String {
    let mut text = text.to_owned();
    let mut held = Vec::new();
    for port in ["8080", "8081", "8082"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        text = text.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{own}"));
        held.push(listener);
    }
    text
}

/// Runs the blocks of a page that are marked `run`, one after the other in one shell. What they print; `None` if a tool is missing.
fn runs(page: &str) -> Option<String> {
    let blocks = blocks_of(&root().join("docs/src").join(page));
    let marked: Vec<&str> = blocks.iter().filter(|b| b.mark == Mark::Run).map(|b| b.text.as_str()).collect();
    assert!(!marked.is_empty(), "{page} has nothing to run");
    let missing = ["curl", "openssl"].into_iter().find(|tool| {
        let used = marked.iter().any(|text| text.split_whitespace().any(|word| word == *tool));
        used && !Command::new(tool).arg("--help").output().is_ok_and(|output| output.status.success())
    });
    if let Some(tool) = missing {
        let _ = writeln!(std::io::stderr(), "{page}: not run, since there is no {tool}");
        return None;
    }
    let directory = tempfile::Builder::new().prefix("guide-").tempdir_in("/tmp").unwrap();
    let programs = binaries::path("quickstart");
    std::fs::create_dir(directory.path().join("target")).unwrap();
    symlink(programs.parent().unwrap(), directory.path().join("target/debug")).unwrap();
    symlink(root().join("deploy").canonicalize().unwrap(), directory.path().join("deploy")).unwrap();
    let script = with_own_ports(&format!("{PROLOGUE}{}", marked.concat()));
    let output = in_shell(directory.path(), &script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page} ended with {}\n{script}\n{said}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn in_shell(directory: &Path, script: &str) -> std::process::Output {
    // Sockets have short paths, and what pages make with mktemp goes with the rest.
    Command::new("bash")
        .args(["-c", script])
        .current_dir(directory)
        .env("TMPDIR", directory)
        .output()
        .unwrap()
}

/// Needs root, since a driver that mounts is started.
#[test]
fn the_page_that_runs_the_parts_by_hand_runs() {
    if !rustix::process::geteuid().is_root() {
        let test = "the_page_that_runs_the_parts_by_hand_runs";
        let _ = writeln!(std::io::stderr(), "{test}: not run, since it needs root");
        return;
    }
    let _ = runs("by-hand.md");
}

#[test]
fn the_first_page_runs_and_tells_of_as_many_steps_as_it_says() {
    let printed = runs("introduction.md").unwrap();
    let steps = printed.lines().find_map(|line| line.strip_prefix("all ")?.strip_suffix(" steps went well"));
    let page = std::fs::read_to_string(root().join("docs/src/introduction.md")).unwrap();
    assert!(page.contains(&format!("each of its {} steps", steps.unwrap())), "{printed}");
}

#[test]
fn the_certificates_of_the_guide_are_made() {
    let _ = (runs("security.md"), runs("install.md"));
}

#[test]
fn every_page_with_blocks_to_run_is_run_here() {
    let with: Vec<String> = pages()
        .iter()
        .filter(|page| blocks_of(page).iter().any(|block| block.mark == Mark::Run))
        .map(|page| page.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(with, ["by-hand.md", "install.md", "introduction.md", "security.md"]);
}
