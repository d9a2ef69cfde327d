//! Edge and cloud in network namespaces of their own, with a router between them that drops what a test says: half-open links,
//! a node whose address changes, a network that blocks UDP. They need root; without, each says so.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]
#![allow(clippy::print_stdout, reason = "figures are for those who run it")]

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use edge_csi_tests::arguments::unix;
use edge_csi_tests::counting::{Counting, Served, id_of};
use edge_csi_tests::csi::{controller, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::sidecar::{Learnt, Sidecar};
use edge_csi_tests::stand::{DRIVER, NODE, Stand};
use edge_csi_tests::wait;
use tokio::task::JoinHandle;

/// What a sidecar gives a call, more than any call should take here: a second question would hide a lost answer.
const CALL: Duration = Duration::from_secs(120);

/// Where the hub is.
const QUIC: &str = "quic://10.91.2.2:10001";
const WS: &str = "ws://10.91.2.2:10000";

/// Whether this process may make namespaces, and a line that tells if not.
fn may_separate(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "{test}: not run, since network namespaces need root");
    }
    root
}

fn run(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output();
    let output = output.unwrap_or_else(|cause| panic!("ip (Debian's iproute2): {cause}"));
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Two networks, and a router between them. Gone when dropped.
struct Networks {
    edge: String,
    router: String,
    cloud: String,
}

impl Networks {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |part: &str| format!("edge-csi-{}-{number}-{part}", std::process::id());
        let networks = Self { edge: name("edge"), router: name("router"), cloud: name("cloud") };
        for namespace in [&networks.edge, &networks.router, &networks.cloud] {
            run(&["netns", "add", namespace]);
            run(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        for (namespace, port, subnet) in [(&networks.edge, "edge", 1), (&networks.cloud, "cloud", 2)] {
            let router = &networks.router;
            run(&[
                "-n", namespace, "link", "add", "wan", "type", "veth", "peer", "name", port, "netns", router,
            ]);
            run(&["-n", router, "addr", "add", &format!("10.91.{subnet}.1/24"), "dev", port]);
            run(&["-n", router, "link", "set", port, "up"]);
            run(&["-n", namespace, "link", "set", "wan", "up"]);
            address(namespace, subnet, 2);
        }
        run(&["netns", "exec", &networks.router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]);
        networks
    }

    /// The router drops what matches, both ways, and tells nobody.
    fn drop_packets(&self, matching: &[&str]) {
        run(&[&["-n", &self.router, "rule", "add", "priority", "10"], matching, &["blackhole"]].concat());
    }

    fn drop_nothing(&self) {
        run(&["-n", &self.router, "rule", "del", "priority", "10"]);
    }
}

/// The one address that a namespace has from now on.
fn address(namespace: &str, subnet: u8, host: u8) {
    run(&["-n", namespace, "addr", "flush", "dev", "wan"]);
    run(&["-n", namespace, "addr", "add", &format!("10.91.{subnet}.{host}/24"), "dev", "wan"]);
    run(&["-n", namespace, "route", "add", "default", "via", &format!("10.91.{subnet}.1")]);
}

impl Drop for Networks {
    fn drop(&mut self) {
        for namespace in [&self.edge, &self.router, &self.cloud] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

/// Hub and proxy in the cloud, agent and driver at the edge.
struct Ground {
    driver: Counting,
    hub: Process,
    agent: Process,
    _proxy: Process,
    _served: Served,
    // Last, so that the processes are gone before their files and their namespaces.
    stand: Stand,
    networks: Networks,
}

impl Ground {
    async fn start(roads: &[&str]) -> Self {
        let networks = Networks::new();
        let driver = Counting::working(Duration::ZERO);
        let stand = Stand::empty(LinkKind::Uds);
        let served = driver.serve(&stand.driver_socket());
        let start = |namespace: &str, name: &str, binary: &str, arguments: &[&str]| {
            let before = ["ip", "netns", "exec", namespace];
            let arguments = arguments.iter().chain(&["-vv"]);
            Process::start_after(&before, stand.directory(), name, binary, arguments, &[])
        };
        let (uds, state) = (unix(&stand.path("hub.sock")), stand.path("agent-state"));
        let listen = ["--uds", &uds, "--ws", "0.0.0.0:10000", "--quic", "0.0.0.0:10001", "--insecure"];
        let hub = start(&networks.cloud, "hub", "edge-hub", &listen);
        hub.logged("listening on quic://").await;
        let (named, state) = (format!("{DRIVER}={}", unix(&stand.driver_socket())), state.to_string_lossy());
        let mut dial = vec![
            "--nodeid",
            NODE,
            "--insecure",
            "--better-road-every",
            "1s",
            "--state-dir",
            &state,
            "--driver",
            &named,
        ];
        dial.extend(roads.iter().flat_map(|road| ["--hub", road]));
        let agent = start(&networks.edge, "agent", "edge-agent", &dial);
        let socket = unix(&stand.proxy_socket());
        let serve =
            ["--drivername", DRIVER, "--nodeid", NODE, "--endpoint", &socket, "--kubeedge-endpoint", &uds];
        let proxy = start(&networks.cloud, "proxy", "edge-csi-driver", &serve);
        ready(&stand.proxy_socket()).await;
        Self { driver, hub, agent, _proxy: proxy, _served: served, stand, networks }
    }

    /// A call that the driver works on until it is released.
    async fn held(&self) -> JoinHandle<Learnt<String>> {
        let sidecar = Sidecar::new(controller(&self.stand.proxy_socket()), CALL);
        let calling = tokio::spawn(async move { sidecar.create("held-1").await });
        wait::until("the driver works", async || {
            (self.driver.of("CreateVolume", "held-1").begun == 1).then_some(())
        })
        .await;
        calling
    }

    /// The call ends well, was made once and carried out once.
    async fn ends_well(&self, call: JoinHandle<Learnt<String>>) {
        let learnt = wait::within("the answer", call).await.unwrap();
        assert_eq!((learnt.end.unwrap(), learnt.asked), (id_of("held-1"), 1));
        assert_eq!(self.driver.of("CreateVolume", "held-1").begun, 1);
    }

    /// How often the agent has come to the hub over this kind of link.
    fn connected(&self, kind: &str) -> usize {
        let kind = format!("kind={kind}");
        let is_agent =
            |line: &&str| line.contains("peer connected") && line.contains(NODE) && line.contains(&kind);
        self.hub.log().lines().filter(is_agent).count()
    }
}

async fn half_open_over(road: &str) {
    let ground = Ground::start(&[road]).await;
    let call = ground.held().await;
    ground.networks.drop_packets(&[]);
    let since = Instant::now();
    let dead = |process: &Process| process.log().contains("the other end was silent");
    let mut told = [None; 2];
    wait::until("both ends have given the link up", || {
        let ends = [dead(&ground.hub), dead(&ground.agent)];
        for (told, is_dead) in told.iter_mut().zip(ends) {
            *told = told.or_else(|| is_dead.then(|| since.elapsed()));
        }
        std::future::ready(told.iter().all(Option::is_some).then_some(()))
    })
    .await;
    println!("{road}: dead after {told:?} (hub, agent)");
    let log = ground.hub.log();
    let last = log.lines().find(|line| line.contains("the other end was silent")).unwrap_or_default();
    assert!(last.contains(NODE), "the hub does not say whose link it was: {last}");
    // The answer is there before there is a way for it.
    ground.driver.release();
    wait::until("the driver is done", async || {
        (ground.driver.of("CreateVolume", "held-1").ended == 1).then_some(())
    })
    .await;
    assert!(!call.is_finished());
    ground.networks.drop_nothing();
    ground.ends_well(call).await;
}

/// Anchors (f) 6: all packets dropped both ways; neither end sees anything of it but silence.
#[tokio::test]
async fn a_half_open_websocket_is_given_up_by_both_ends_and_the_call_goes_on_when_packets_flow() {
    if may_separate("a_half_open_websocket_is_given_up_by_both_ends_and_the_call_goes_on_when_packets_flow") {
        half_open_over(WS).await;
    }
}

/// Anchors (f) 6, over QUIC.
#[tokio::test]
async fn a_half_open_quic_link_is_given_up_by_both_ends_and_the_call_goes_on_when_packets_flow() {
    if may_separate("a_half_open_quic_link_is_given_up_by_both_ends_and_the_call_goes_on_when_packets_flow") {
        half_open_over(QUIC).await;
    }
}

/// Anchors (f) 12: the node gets another address, and the old one goes.
#[tokio::test]
async fn a_node_whose_address_changes_in_mid_call_keeps_its_quic_connection() {
    if !may_separate("a_node_whose_address_changes_in_mid_call_keeps_its_quic_connection") {
        return;
    }
    let ground = Ground::start(&[QUIC]).await;
    let call = ground.held().await;
    address(&ground.networks.edge, 1, 3);
    ground.driver.release();
    ground.ends_well(call).await;
    assert_eq!((ground.connected("quic"), ground.connected("ws")), (1, 0), "{}", ground.hub.log());
}

/// Anchors (f) 12: UDP is blocked in mid-call and free again later.
#[tokio::test]
async fn a_network_that_blocks_udp_in_mid_call_moves_the_call_to_a_websocket_and_back_to_quic_later() {
    if !may_separate(
        "a_network_that_blocks_udp_in_mid_call_moves_the_call_to_a_websocket_and_back_to_quic_later",
    ) {
        return;
    }
    let ground = Ground::start(&[QUIC, WS]).await;
    assert_eq!((ground.connected("quic"), ground.connected("ws")), (1, 0), "{}", ground.hub.log());
    let call = ground.held().await;
    ground.networks.drop_packets(&["ipproto", "udp"]);
    wait::until("the agent comes over the websocket", async || (ground.connected("ws") == 1).then_some(()))
        .await;
    ground.driver.release();
    ground.ends_well(call).await;

    // A second call is open while the way changes back.
    ground.driver.hold();
    let sidecar = Sidecar::new(controller(&ground.stand.proxy_socket()), CALL);
    let second = tokio::spawn(async move { sidecar.create("held-2").await });
    wait::until("the driver works again", async || {
        (ground.driver.of("CreateVolume", "held-2").begun == 1).then_some(())
    })
    .await;
    ground.networks.drop_nothing();
    wait::until("the agent is back on QUIC", async || (ground.connected("quic") == 2).then_some(())).await;
    ground.driver.release();
    let learnt = wait::within("the answer", second).await.unwrap();
    assert_eq!((learnt.end.unwrap(), learnt.asked), (id_of("held-2"), 1));
    assert_eq!(ground.driver.of("CreateVolume", "held-2").begun, 1);
}
