//! The operator's view: help, logs, health, metrics, and failover from a hub that is down.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::process::Command;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::arguments::unix;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, probe_returns, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::{binaries, page};

#[test]
fn help_names_every_option_with_defaults_and_units() {
    let common = ["--verbose", "--log-format", "[default: text]"];
    let table: &[(&str, &[&str])] = &[
        (
            "edge-hub",
            &[
                "--listen",
                "[default: unix:///run/edge-csi/hub.sock]",
                "wss://IP:PORT",
                "ws://IP:PORT",
                "quic://IP:PORT",
                "--allow",
                "--http-endpoint",
                "--tls-cert",
                "--tls-key",
                "--client-ca",
                "--insecure",
                "[default: 10s]",
                "rebalance",
            ],
        ),
        (
            "edge-agent",
            &[
                "--nodeid",
                "--hub",
                "--state-dir",
                "--driver",
                "NAME=URL",
                "--plugins-registry",
                "--kubelet-socket-dir",
                "--topology-key",
                "--driver-timeout",
                "--tls-cert",
                "--tls-key",
                "--tls-ca",
                "--insecure",
                "--http-endpoint",
                "[default: 10s]",
                "(ms, s, m, h)",
                "--failback-interval",
                "--operation-queue-timeout",
                "--staging-dir",
                "--allowed-target-dir",
                "volumes",
                "explain",
            ],
        ),
        (
            "edge-csi-driver",
            &[
                "--drivername",
                "--endpoint",
                "[default: unix:///csi/csi.sock]",
                "--hub",
                "--kubeedge-endpoint",
                "--nodeid",
                "--route",
                "--state-dir",
                "CSI_DRIVERNAME",
                "CSI_ENDPOINT",
                "KUBEEDGE_ENDPOINT",
                "KUBE_NODE_NAME",
                "--tls-ca",
                "decommission",
                "recommission",
            ],
        ),
        ("hostpath-driver", &["--drivername", "--endpoint", "--nodeid", "--state-dir"]),
        ("quickstart", &["--directory"]),
    ];
    for (binary, options) in table {
        let output = Command::new(binaries::path(binary)).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{binary}");
        for option in options.iter().chain(&common) {
            assert!(help.contains(option), "{binary} --help does not name {option}:\n{help}");
        }
    }
}

#[tokio::test]
async fn json_logs_are_one_object_a_line() {
    let cluster = TestCluster::empty(LinkKind::Uds);
    let socket = unix(&cluster.path("hub.sock"));
    let arguments = ["--listen", &socket, "--log-format", "json", "-v"];
    let hub = Process::start(cluster.directory(), "hub", "edge-hub", arguments);
    hub.logged("listening on").await;
    for line in hub.log().lines() {
        let object: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|cause| panic!("{line}: {cause}"));
        assert!(object["timestamp"].is_string() && object["level"].is_string(), "{line}");
    }
}

/// Returns the status line and the body of the answer for a path.
async fn get(address: &str, path: &str) -> Option<(String, String)> {
    let answer = page::get(address, path).await?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

#[tokio::test]
async fn readiness_follows_the_hub_and_metrics_count_the_calls() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&[]).unwrap();
    let proxy = page::address(cluster.proxy.as_ref().unwrap()).await;
    let agent = page::address(cluster.agent.as_ref().unwrap()).await;
    for address in [&proxy, &agent] {
        let (health, _) = get(address, "/livez").await.unwrap();
        let (readiness, reason) = get(address, "/readyz").await.unwrap();
        assert!(
            health.contains("200") && readiness.contains("503") && reason.contains("hub"),
            "{readiness}: {reason}"
        );
    }

    cluster.start_hub().await.unwrap();
    ready(&cluster.proxy_socket()).await;
    controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();
    for (address, names) in [(&proxy, [DRIVER, NODE]), (&agent, [DRIVER, NODE])] {
        let (readiness, _) = get(address, "/readyz").await.unwrap();
        assert!(readiness.contains("200"), "{readiness}");
        let (_, metrics) = get(address, "/metrics").await.unwrap();
        let counted = metrics.lines().any(|line| {
            line.starts_with("csi_plugin_operations_seconds_count")
                && line.contains("/csi.v1.Controller/CreateVolume")
                && line.contains(DRIVER)
        });
        assert!(counted, "{metrics}");
        assert!(metrics.lines().any(|line| line == "edge_csi_hub_connected 1"), "{metrics}");
        let (_, page) = get(address, "/").await.unwrap();
        assert!(names.iter().all(|name| page.contains(name)), "{page}");
    }
}

#[tokio::test]
async fn the_hub_counts_its_peers_and_their_calls() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    let arguments = ["--listen", &unix(&cluster.path("hub.sock")), "--http-endpoint", "127.0.0.1:0"];
    cluster.hub = Some(Process::start(cluster.directory(), "hub", "edge-hub", arguments));
    let hub = page::address(cluster.hub.as_ref().unwrap()).await;
    cluster.start_driver(&[]).unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
    let (readiness, _) = get(&hub, "/readyz").await.unwrap();
    assert!(readiness.contains("200"), "{readiness}");
    let (_, metrics) = get(&hub, "/metrics").await.unwrap();
    assert!(metrics.lines().any(|line| line == "edge_transport_hub_peers 2"), "{metrics}");
    let (_, page) = get(&hub, "/").await.unwrap();
    assert!(page.contains(&format!("peer {NODE}")) && page.contains(&format!("proxy/{DRIVER}/")), "{page}");
}

#[tokio::test]
async fn the_next_address_is_used_when_the_first_does_not_answer() {
    let mut cluster = TestCluster::empty(LinkKind::Ws);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    let socket = cluster.proxy_socket();
    let (endpoint, second) = (unix(&socket), cluster.hub_url().to_owned());
    let arguments = [
        "--drivername",
        DRIVER,
        "--endpoint",
        &endpoint,
        "--nodeid",
        NODE,
        "--hub",
        "ws://127.0.0.1:1",
        "--hub",
        &second,
        "--insecure",
    ];
    let _proxy = Process::start(cluster.directory(), "proxy", "edge-csi-driver", arguments);
    ready(&socket).await;
    controller(&socket).create_volume(create_volume("pvc-1")).await.unwrap();
}

#[tokio::test]
async fn the_proxy_reads_the_environment_of_the_proposal() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    let socket = cluster.proxy_socket();
    let endpoint = unix(&socket);
    // One variable contains several addresses.
    let hubs = format!("unix:///tmp/edge-csi-absent.sock,{}", cluster.hub_url());
    let environment = [
        ("CSI_DRIVERNAME", DRIVER),
        ("CSI_ENDPOINT", &endpoint),
        ("KUBEEDGE_ENDPOINT", &hubs),
        ("KUBE_NODE_NAME", NODE),
    ];
    let nothing: [&str; 0] = [];
    let _proxy = Process::start_with(cluster.directory(), "proxy", "edge-csi-driver", nothing, &environment);
    ready(&socket).await;
}

#[tokio::test]
async fn a_restarted_proxy_knows_the_capabilities_without_the_node() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    let state = cluster.path("proxy-state");
    let more = ["--state-dir".to_owned(), state.to_string_lossy().into_owned()];
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.start_proxy(&more).unwrap();
    ready(&cluster.proxy_socket()).await;
    let ask = async || {
        let request = csi::ControllerGetCapabilitiesRequest {};
        controller(&cluster.proxy_socket()).controller_get_capabilities(request).await
    };
    let before = ask().await.unwrap().into_inner();

    let mut second = Process::start(
        cluster.directory(),
        "proxy-2",
        "edge-csi-driver",
        [
            "--drivername",
            DRIVER,
            "--nodeid",
            NODE,
            "--endpoint",
            &unix(&cluster.path("second.sock")),
            "--state-dir",
        ]
        .into_iter()
        .chain([&*state.to_string_lossy()]),
    );
    assert_eq!(second.ended().await.code(), Some(1));
    assert!(second.log().contains("in use by another process"), "{}", second.log());

    cluster.agent = None;
    cluster.proxy = None;
    cluster.start_proxy(&more).unwrap();
    probe_returns(&cluster.proxy_socket(), false).await;
    let request = csi::ControllerGetCapabilitiesRequest {};
    let after =
        controller(&cluster.proxy_socket()).controller_get_capabilities(request).await.unwrap().into_inner();
    assert_eq!(before, after);
}
