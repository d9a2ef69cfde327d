//! The commands of the guide are valid, and those that can run are run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::binaries;
use edge_csi_tests::command_line::{PROGRAMS, accepts};
use edge_csi_tests::guide::{
    API_SERVER_PAGES, KUBEEDGE_PAGE, Mark, NODE_PAGES, WITHOUT_NODES, blocks_of, commands_of, pages, root,
    script,
};

/// Options that only a build with the feature `kubernetes` accepts.
const OF_A_FEATURE: [&str; 3] = ["--kubeconfig", "--kubelet-dir", "--node-signer"];

#[test]
/// Every option of our programs in the guide exists and accepts its value.
fn options_in_the_guide_exist() {
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

/// Blocks that no test runs and that start none of our programs: the beginning of the block, and the reason.
const FOR_READERS: [(&str, &str); 7] = [
    ("kubectl get placements,drivernodes ", "wants placements at the API server"),
    ("kubectl scale deployment/edge-csi-controller ", "wants a backup of them"),
    ("kubectl exec edge-csi-controller-0 ", "wants a node that is lost"),
    (
        "kubectl exec POD ",
        "wants the name of a pod; the end-to-end test `kubernetes-failover` runs the command",
    ),
    ("for program in edge-hub edge-agent", "wants a container builder and a registry"),
    ("node-driver-registrar ", "the manifests start it, with these options"),
    (
        "GOBIN=$dir go install github.com/kubernetes-csi/csi-test",
        "the test `drivers` runs it, so against one node",
    ),
];

#[test]
fn every_block_of_the_guide_is_run() {
    let tests = std::fs::read_to_string(root().join("tests/tests/guide.rs")).unwrap();
    let mut forgotten = Vec::new();
    for page in pages() {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        for block in blocks_of(&page) {
            let on_api_server = API_SERVER_PAGES.contains(&name.as_str()) && !block.is_cleanup;
            let on_nodes = NODE_PAGES.contains(&(name.as_str(), block.is_cleanup));
            let run = match block.mark {
                Mark::Run => tests.contains(&format!("runs(\"{name}\")")) || on_api_server,
                Mark::Cluster => on_api_server && on_nodes,
                Mark::Nodes => on_nodes || name == WITHOUT_NODES,
                Mark::KubeEdge => name == KUBEEDGE_PAGE,
                // `options_in_the_guide_exist` checks the options in such a block.
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
    assert!(forgotten.is_empty(), "no test runs {}", forgotten.join(", "));
}

/// Returns the sources of the repository below these folders, in one text.
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

/// The page on recovery names for each failure the file of the test that causes it, and for each alert its metric.
#[test]
fn every_test_and_metric_that_the_guide_names_exists() {
    let text = sources(&["csi-proxy", "edge-transport", "examples", "volume-manager"]);
    let (mut tests, mut metrics) = (0, 0);
    for page in pages() {
        let page = std::fs::read_to_string(page).unwrap();
        for word in page.split('`') {
            if ["csi_plugin_", "edge_csi_", "edge_transport_"].iter().any(|prefix| word.starts_with(prefix)) {
                let metric = word.split('{').next().unwrap();
                metrics += 1;
                assert!(text.contains(&format!("\"{metric}\"")), "there is no metric {metric}");
            } else if word.contains('/') && word.ends_with(".rs") && !word.contains(char::is_whitespace) {
                tests += 1;
                let found = [root().to_owned(), root().join("volume-manager")]
                    .iter()
                    .any(|at| at.join(word).is_file());
                assert!(found, "there is no file {word}");
            }
        }
    }
    assert!(tests > 15 && metrics > 5, "{tests} tests, {metrics} metrics");
}

/// Commands that run before those of a page. The tests have built what `cargo` would build.
const PROLOGUE: &str = r#"
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT
cargo() { case "$*" in "build "*) ;; "run -p "*) "target/debug/${@: -1}" ;; *) return 1 ;; esac; }
"#;

/// Replaces each port of a page by a free one, since the page's port may be in use.
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

/// Runs the blocks of a page that are marked `run`, one after the other in one shell. Returns their output; `None` if a
/// tool is missing.
fn runs(page: &str) -> Option<String> {
    let commands = script(page, &[Mark::Run], false);
    let missing = ["curl", "openssl"].into_iter().find(|tool| {
        let used = commands.split_whitespace().any(|word| word == *tool);
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
    let script = with_own_ports(&format!("{PROLOGUE}{commands}"));
    let output = in_shell(directory.path(), &script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page} ended with {}\n{script}\n{said}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn in_shell(directory: &Path, script: &str) -> std::process::Output {
    // Paths of sockets have to be short. TMPDIR makes the removal cover the files that pages create with mktemp.
    Command::new("bash")
        .args(["-c", script])
        .current_dir(directory)
        .env("TMPDIR", directory)
        .output()
        .unwrap()
}

/// This test needs root, since the driver of the page mounts.
#[test]
fn the_page_by_hand_runs() {
    if !rustix::process::geteuid().is_root() {
        let test = "the_page_by_hand_runs";
        let _ = writeln!(std::io::stderr(), "{test}: not run, since it needs root");
        return;
    }
    let _ = runs("by-hand.md");
}

#[test]
fn first_page_names_the_number_of_steps() {
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

/// Every file and folder that ARCHITECTURE.md and CONTRIBUTING.md name in backticks exists.
#[test]
fn paths_in_the_documents_exist() {
    let listed = Command::new("git").arg("ls-files").current_dir(root()).output().unwrap();
    let files = String::from_utf8(listed.stdout).unwrap();
    let (mut read, mut missing) = (0, Vec::new());
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        // Every second part is between backticks.
        for path in text.split('`').skip(1).step_by(2).filter(|it| is_path(it)) {
            read += 1;
            let path = path.trim_end_matches('/');
            let names = |file: &str| format!("/{file}/").contains(&format!("/{path}/"));
            if !files.lines().any(names) {
                missing.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "not in the repository: {}", missing.join(", "));
    assert!(read > 20, "{read} paths were found");
}

fn is_path(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    text.contains('/') && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(is_plain)
}
