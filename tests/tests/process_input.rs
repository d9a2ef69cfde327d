//! Bad input ends a binary with one line on stderr that names what is wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::certificates::{Authority, Files};
use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::link::{HubLink, LinkKind};
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("edge-csi-").tempdir_in("/tmp").unwrap()
}

/// Runs a binary to its end. Returns the exit code and the last line of stderr.
async fn ends(directory: &Path, binary: &str, arguments: &[&str]) -> (i32, String) {
    let name = format!("{binary}-{}", std::fs::read_dir(directory).unwrap().count());
    let mut process = Process::start(directory, &name, binary, arguments);
    let status = process.ended().await;
    let log = process.log();
    let complaints: Vec<&str> =
        log.lines().filter(|line| line.starts_with(&format!("{binary}: error: "))).collect();
    assert_eq!(complaints.len(), 1, "{binary} {arguments:?} says: {log}");
    assert!(!log.contains("panicked") && !log.contains("RUST_BACKTRACE"), "{log}");
    (status.code().unwrap_or_else(|| panic!("{binary} was killed: {log}")), complaints[0].to_owned())
}

/// A directory whose path is too long for any socket in it.
const LONG_DIRECTORY: &str = "/tmp/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

const LONG: &str = "unix:///tmp/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.sock";

#[tokio::test]
async fn bad_options_end_with_code_2_and_one_line_that_names_them() {
    let directory = directory();
    let hub = ["--hub", "unix:///tmp/none.sock"];
    let table: &[(&str, &[&str], &[&str])] = &[
        ("edge-hub", &["--nosuch"], &["--nosuch"]),
        ("edge-hub", &["--listen", "ws://localhost:1"], &["--listen", "ws://localhost:1", "ws://IP:PORT"]),
        ("edge-hub", &["--listen", "wss://:70000"], &["--listen", "wss://:70000", "wss://IP:PORT"]),
        ("edge-hub", &["--listen", "quic://1.2.3.4"], &["--listen", "quic://1.2.3.4", "quic://IP:PORT"]),
        ("edge-hub", &["--listen", "tcp://1.2.3.4:5"], &["--listen", "tcp://1.2.3.4:5", "unix:///PATH"]),
        ("edge-hub", &["--listen", "unix://hub.sock"], &["--listen", "hub.sock", "absolute"]),
        ("edge-hub", &["--listen", LONG], &["--listen", "107"]),
        ("edge-hub", &["--listen", "ws://127.0.0.1:0"], &["--listen ws://", "not encrypted", "--insecure"]),
        ("edge-hub", &["--listen", "wss://127.0.0.1:0"], &["--listen wss://", "--tls-cert", "--insecure"]),
        ("edge-hub", &["--listen", "quic://127.0.0.1:0"], &["--listen quic://", "--tls-cert", "--insecure"]),
        (
            "edge-hub",
            &["--listen", "quic://127.0.0.1:0", "--insecure"],
            &["--listen quic://", "--allow is required"],
        ),
        ("edge-hub", &["--allow", "proxy"], &["--allow", "proxy"]),
        ("edge-hub", &["--deny", "/tmp/none.deny"], &["cannot read deny list /tmp/none.deny"]),
        (
            "edge-hub",
            &["--deny", "/proc/version"],
            &["deny list /proc/version, line 1: expected a peer's name"],
        ),
        ("edge-hub", &["--tls-cert", "/tmp/none.pem"], &["--tls-key"]),
        (
            "edge-hub",
            &["--insecure", "--tls-cert", "a", "--tls-key", "b", "--client-ca", "c"],
            &["--insecure", "--tls-cert"],
        ),
        ("edge-agent", &hub, &["--nodeid"]),
        ("edge-agent", &["--nodeid", NODE], &["--hub"]),
        ("edge-agent", &["--nodeid", "edge 1", "--hub", "unix:///tmp/none.sock"], &["--nodeid"]),
        ("edge-agent", &["--nodeid", NODE, "--hub", "http://hub:1"], &["--hub", "http"]),
        ("edge-agent", &["--nodeid", NODE, "--hub", "ws://:0"], &["--hub"]),
        (
            "edge-agent",
            &["--nodeid", NODE, "--hub", "unix:///tmp/none.sock"],
            &["--driver", "--plugins-registry"],
        ),
        (
            "edge-agent",
            &["--nodeid", NODE, "--hub", "unix:///tmp/none.sock", "--driver", "x"],
            &["--driver", "NAME=unix:///"],
        ),
        (
            "edge-agent",
            &["--nodeid", NODE, "--hub", "ws://127.0.0.1:1", "--driver", "a.b=unix:///tmp/none.sock"],
            &["ws://127.0.0.1:1", "--insecure"],
        ),
        (
            "edge-agent",
            &["--nodeid", NODE, "--hub", "quic://127.0.0.1:1", "--driver", "a.b=unix:///tmp/none.sock"],
            &["quic://127.0.0.1:1", "--tls-cert"],
        ),
        (
            "edge-agent",
            &[
                "--nodeid",
                NODE,
                "--hub",
                "unix:///tmp/none.sock",
                "--driver",
                "a.b=unix:///tmp/none.sock",
                "--driver-timeout",
                "0s",
            ],
            &["--driver-timeout", "0s", "1s"],
        ),
        (
            "edge-agent",
            &["--nodeid", NODE, "--hub", "unix:///tmp/none.sock", "--driver-timeout", "9999h"],
            &["--driver-timeout", "9999h", "8760h"],
        ),
        (
            "edge-agent",
            &[
                "--nodeid",
                NODE,
                "--hub",
                "unix:///tmp/none.sock",
                "--driver",
                "a.b=unix:///tmp/none.sock",
                "--operation-queue-timeout",
                "2m",
            ],
            &["--operation-queue-timeout", "120s", "60s"],
        ),
        (
            "edge-agent",
            &[
                "--nodeid",
                NODE,
                "--hub",
                "unix:///tmp/none.sock",
                "--driver",
                "a.b=unix:///tmp/none.sock",
                "--topology-key",
                "a.b/node",
            ],
            &["--kubelet-socket-dir"],
        ),
        (
            "edge-agent",
            &[
                "--nodeid",
                NODE,
                "--hub",
                "unix:///tmp/none.sock",
                "--driver",
                "a.b=unix:///tmp/none.sock",
                "--kubelet-socket-dir",
                "/tmp",
                "--topology-key",
                "node",
            ],
            &["--topology-key", "PREFIX/NAME"],
        ),
        ("edge-csi-driver", &["--nodeid", NODE], &["--drivername"]),
        ("edge-csi-driver", &["--drivername", DRIVER, "--hub", "unix:///tmp/none.sock"], &["--nodeid"]),
        ("edge-csi-driver", &["--drivername", "bad_name", "--nodeid", NODE], &["--drivername"]),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--route", "topology", "--node", "edge-1,edge-2"],
            &["--route topology", "--state-dir"],
        ),
        (
            "edge-csi-driver",
            &[
                "--drivername",
                DRIVER,
                "--route",
                "topology",
                "--endpoint-dir",
                "/tmp/s",
                "--state-dir",
                "/tmp/none",
            ],
            &["--endpoint-dir", "--route sockets"],
        ),
        ("edge-csi-driver", &["--drivername", DRIVER, "--node", NODE], &["--node", "--route topology"]),
        ("edge-csi-driver", &["decommission", NODE], &["--state-dir"]),
        ("edge-csi-driver", &["decommission", "../edge", "--state-dir", "/tmp"], &["../edge"]),
        (
            "edge-csi-driver",
            &["recommission", NODE, "--state-dir", "/tmp/edge-csi-nowhere/state"],
            &["--state-dir", "no directory /tmp/edge-csi-nowhere/state"],
        ),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--route", "sockets", "--node", NODE],
            &["--route sockets", "--endpoint-dir"],
        ),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--route", "sockets", "--node", NODE, "--endpoint-dir", LONG_DIRECTORY],
            &["--endpoint-dir", "107"],
        ),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--route", "sockets", "--node", "../edge", "--endpoint-dir", "/tmp/s"],
            &["--node", "../edge"],
        ),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--nodeid", NODE, "--endpoint", LONG],
            &["--endpoint", "107"],
        ),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--nodeid", NODE, "--endpoint", "tcp://1.2.3.4:5"],
            &["--endpoint", "unix:///"],
        ),
        (
            "edge-csi-driver",
            &["--drivername", DRIVER, "--nodeid", NODE, "--kubeedge-endpoint", "wss://"],
            &["--hub", "wss://"],
        ),
        ("hostpath-driver", &["--endpoint", LONG], &["107"]),
        ("quickstart", &["--nosuch"], &["--nosuch"]),
    ];
    for (binary, arguments, needles) in table {
        let (code, line) = ends(directory.path(), binary, arguments).await;
        assert_eq!(code, 2, "{binary} {arguments:?}: {line}");
        for needle in *needles {
            assert!(line.contains(needle), "{binary} {arguments:?} does not name {needle}: {line}");
        }
    }
}

#[tokio::test]
async fn errors_name_a_live_socket_and_a_missing_directory() {
    let directory = directory();
    let live = directory.path().join("live.sock");
    let _listener = UnixListener::bind(&live).unwrap();
    let missing = directory.path().join("none/csi.sock");
    for (path, what) in [(live, "live"), (missing, "missing")] {
        let (url, path) = (unix(&path), path.to_string_lossy().into_owned());
        let table: &[(&str, &[&str])] = &[
            ("edge-hub", &["--listen", &url]),
            ("edge-csi-driver", &["--drivername", DRIVER, "--nodeid", NODE, "--endpoint", &url]),
        ];
        for (binary, arguments) in table {
            let (code, line) = ends(directory.path(), binary, arguments).await;
            assert!(code != 0 && line.contains(&path), "{what}: {line}");
        }
    }
}

#[tokio::test]
async fn a_proxy_that_cannot_serve_http_never_shows_its_socket() {
    let directory = directory();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let http = taken.local_addr().unwrap().to_string();
    let socket = directory.path().join("csi.sock");
    let endpoint = unix(&socket);
    let arguments =
        ["--drivername", DRIVER, "--nodeid", NODE, "--endpoint", &endpoint, "--http-endpoint", &http];
    let hub = ["--hub", "unix:///tmp/none.sock"];
    let (code, line) = ends(directory.path(), "edge-csi-driver", &[&arguments[..], &hub].concat()).await;
    assert!(code == 1 && line.contains(&http), "{code}: {line}");
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_by_one_of_mode_0600() {
    let directory = directory();
    let table: &[(&str, &[&str])] = &[
        ("edge-hub", &["--listen"]),
        ("edge-csi-driver", &["--drivername", DRIVER, "--nodeid", NODE, "--endpoint"]),
    ];
    for (binary, arguments) in table {
        let socket = directory.path().join(format!("{binary}.sock"));
        drop(UnixListener::bind(&socket).unwrap());
        let url = unix(&socket);
        let arguments: Vec<&str> = arguments.iter().copied().chain([url.as_str()]).collect();
        let _process = Process::start(directory.path(), binary, binary, &arguments);
        wait::until(&format!("{binary} answers on {url}"), async || {
            tokio::net::UnixStream::connect(&socket).await.ok()
        })
        .await;
        let metadata = std::fs::metadata(&socket).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{binary}");
    }
}

/// A hub on `wss` with certificates, and its URL.
async fn hub_with_certificates(directory: &Path, authority: &Authority) -> (Process, String) {
    let link = HubLink::new(LinkKind::Wss, "127.0.0.1", directory);
    let hub = Process::start(directory, "hub", "edge-hub", link.hub(&authority.issue(&["127.0.0.1"])));
    hub.logged("listening on wss://").await;
    (hub, link.url().to_owned())
}

fn agent(directory: &Path, name: &str, url: &str, own: &Files) -> Process {
    let agent = Arguments::new().pair("--nodeid", NODE).pair("--hub", url).dialer(own);
    Process::start(directory, name, "edge-agent", agent.serving(DRIVER, &directory.join("driver.sock")))
}

#[tokio::test]
async fn rejects_certificates_of_another_authority_or_name() {
    let directory = directory();
    let authority = Authority::new(directory.path(), "authority");
    let stranger = Authority::new(directory.path(), "stranger");
    let (hub, url) = hub_with_certificates(directory.path(), &authority).await;

    // The agent does not trust the hub, and logs it.
    let untrusting = agent(directory.path(), "untrusting", &url, &stranger.issue(&[NODE]));
    wait::until("the agent names the bad certificate", async || {
        untrusting.log().contains("not signed by an authority in --tls-ca").then_some(())
    })
    .await;

    // The hub does not trust the agent.
    let mut files = stranger.issue(&[NODE]);
    files.authority = directory.path().join("authority.pem");
    let unknown = agent(directory.path(), "unknown", &url, &files);
    wait::until("the agent logs that it was rejected", async || {
        unknown.log().contains("refuses the certificate in --tls-cert").then_some(())
    })
    .await;

    // A trusted certificate, for another name than that of the hello.
    let other = agent(directory.path(), "other", &url, &authority.issue(&["edge-2"]));
    wait::until("the refusal names both", async || {
        let log = other.log();
        (log.contains("edge-2") && log.contains(NODE)).then_some(())
    })
    .await;

    assert!(!hub.log().contains("peer is up"), "{}", hub.log());
    let good = agent(directory.path(), "good", &url, &authority.issue(&[NODE]));
    good.logged("connected").await;
}

/// Files that cannot be used are named, and keep only the link down.
#[tokio::test]
async fn mismatched_certificate_files_are_named() {
    let directory = directory();
    let authority = Authority::new(directory.path(), "authority");
    let (one, two) = (authority.issue(&["edge-1"]), authority.issue(&["edge-2"]));
    let empty: PathBuf = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (name, certificate, key, names) in [
        ("mismatch", &one.certificate, &two.key, &two.key),
        ("no-certificate", &one.key, &one.key, &one.key),
        ("empty-key", &one.certificate, &empty, &empty),
    ] {
        let mut files = one.clone();
        (files.certificate, files.key) = (certificate.clone(), key.clone());
        let mut agent = agent(directory.path(), name, "wss://127.0.0.1:1", &files);
        agent.logged("no connection to the hub").await;
        agent.logged("files cannot be used").await;
        let log = agent.log();
        let named = |line: &str| line.contains("cannot be used") && line.contains(&*names.to_string_lossy());
        assert!(log.lines().any(named), "{log}");
        assert!(agent.runs());
    }
}
