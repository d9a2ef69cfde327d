//! Edge and cloud in separate network namespaces, with a router between them that drops chosen packets: half-open
//! links, a node whose address changes, a network that blocks UDP. The tests need root; without it, each test logs that
//! it did not run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]
#![allow(clippy::print_stdout, reason = "figures are for the person that runs it")]

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use edge_csi_tests::arguments::unix;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::counting::{Counting, Served, id_of};
use edge_csi_tests::csi::{controller, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::sidecar::{FinalResult, Sidecar};
use edge_csi_tests::wait;
use tokio::task::JoinHandle;

/// Timeout of a sidecar's call, longer than any call should take here: a second attempt would hide a lost answer.
const CALL: Duration = Duration::from_secs(120);

/// The address of the hub.
const QUIC: &str = "quic://10.91.2.2:10001";
const WS: &str = "ws://10.91.2.2:10000";

/// Returns whether this process may create namespaces, and logs a line if not.
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

/// Two networks, and a router between them. Removed when dropped.
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

    /// Makes the router drop matching packets in both directions, without an error.
    fn drop_packets(&self, matching: &[&str]) {
        run(&[&["-n", &self.router, "rule", "add", "priority", "10"], matching, &["blackhole"]].concat());
    }

    fn drop_nothing(&self) {
        run(&["-n", &self.router, "rule", "del", "priority", "10"]);
    }
}

/// Replaces the address of a namespace.
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
struct Fixture {
    driver: Counting,
    hub: Process,
    agent: Process,
    _proxy: Process,
    _served: Served,
    // Last, so that the processes end before their files and namespaces are removed.
    cluster: TestCluster,
    networks: Networks,
}

impl Fixture {
    async fn start(urls: &[&str]) -> Self {
        let networks = Networks::new();
        let driver = Counting::working(Duration::ZERO);
        let cluster = TestCluster::empty(LinkKind::Uds);
        let served = driver.serve(&cluster.driver_socket());
        let start = |namespace: &str, name: &str, binary: &str, arguments: &[&str]| {
            let before = ["ip", "netns", "exec", namespace];
            let arguments = arguments.iter().chain(&["-vv"]);
            Process::start_after(&before, cluster.directory(), name, binary, arguments, &[])
        };
        let (uds, state) = (unix(&cluster.path("hub.sock")), cluster.path("agent-state"));
        let (ws, quic) = ("ws://0.0.0.0:10000", "quic://0.0.0.0:10001");
        let listen =
            ["--listen", &uds, "--listen", ws, "--listen", quic, "--allow", "proxy=*:*", "--insecure"];
        let hub = start(&networks.cloud, "hub", "edge-hub", &listen);
        hub.logged("listening on quic://").await;
        let (named, state) =
            (format!("{DRIVER}={}", unix(&cluster.driver_socket())), state.to_string_lossy());
        let mut dial = vec![
            "--nodeid",
            NODE,
            "--insecure",
            "--failback-interval",
            "1s",
            "--state-dir",
            &state,
            "--driver",
            &named,
        ];
        dial.extend(urls.iter().flat_map(|url| ["--hub", url]));
        let agent = start(&networks.edge, "agent", "edge-agent", &dial);
        let socket = unix(&cluster.proxy_socket());
        let serve =
            ["--drivername", DRIVER, "--nodeid", NODE, "--endpoint", &socket, "--kubeedge-endpoint", &uds];
        let proxy = start(&networks.cloud, "proxy", "edge-csi-driver", &serve);
        ready(&cluster.proxy_socket()).await;
        Self { driver, hub, agent, _proxy: proxy, _served: served, cluster, networks }
    }

    /// Starts a call that the driver executes until it is released.
    async fn held(&self) -> JoinHandle<FinalResult<String>> {
        let sidecar = Sidecar::new(controller(&self.cluster.proxy_socket()), CALL);
        let calling = tokio::spawn(async move { sidecar.create("held-1").await });
        wait::until("the driver works", async || {
            (self.driver.of("CreateVolume", "held-1").begun == 1).then_some(())
        })
        .await;
        calling
    }

    /// Asserts that the call succeeded with one attempt and one execution.
    async fn ends_well(&self, call: JoinHandle<FinalResult<String>>) {
        let learnt = wait::within("the answer", call).await.unwrap();
        assert_eq!((learnt.result.unwrap(), learnt.attempts), (id_of("held-1"), 1));
        assert_eq!(self.driver.of("CreateVolume", "held-1").begun, 1);
    }

    /// Returns how often the agent has connected to the hub over this kind of link.
    fn connected(&self, kind: &str) -> usize {
        let kind = format!("kind={kind}");
        let is_agent =
            |line: &&str| line.contains("peer connected") && line.contains(NODE) && line.contains(&kind);
        self.hub.log().lines().filter(is_agent).count()
    }
}

async fn half_open_over(url: &str) {
    let fixture = Fixture::start(&[url]).await;
    let call = fixture.held().await;
    fixture.networks.drop_packets(&[]);
    let since = Instant::now();
    let dead = |process: &Process| process.log().contains("no frame received for");
    let mut reported = [None; 2];
    wait::until("both ends have given the link up", || {
        let ends = [dead(&fixture.hub), dead(&fixture.agent)];
        for (reported, is_dead) in reported.iter_mut().zip(ends) {
            *reported = reported.or_else(|| is_dead.then(|| since.elapsed()));
        }
        std::future::ready(reported.iter().all(Option::is_some).then_some(()))
    })
    .await;
    println!("{url}: dead after {reported:?} (hub, agent)");
    let log = fixture.hub.log();
    let last = log.lines().find(|line| line.contains("no frame received for")).unwrap_or_default();
    assert!(last.contains(NODE), "the hub does not name the peer of the link: {last}");
    // The answer is ready before a link can carry it.
    fixture.driver.release();
    wait::until("the driver is done", async || {
        (fixture.driver.of("CreateVolume", "held-1").ended == 1).then_some(())
    })
    .await;
    assert!(!call.is_finished());
    fixture.networks.drop_nothing();
    fixture.ends_well(call).await;
}

/// All packets are dropped in both directions; neither end receives an error.
#[tokio::test]
async fn both_ends_give_up_a_half_open_websocket() {
    if may_separate("both_ends_give_up_a_half_open_websocket") {
        half_open_over(WS).await;
    }
}

/// Over QUIC.
#[tokio::test]
async fn both_ends_give_up_a_half_open_quic_link() {
    if may_separate("both_ends_give_up_a_half_open_quic_link") {
        half_open_over(QUIC).await;
    }
}

/// The node gets another address, and loses the old one.
#[tokio::test]
async fn quic_survives_a_new_address_of_the_node() {
    if !may_separate("quic_survives_a_new_address_of_the_node") {
        return;
    }
    let fixture = Fixture::start(&[QUIC]).await;
    let call = fixture.held().await;
    address(&fixture.networks.edge, 1, 3);
    fixture.driver.release();
    fixture.ends_well(call).await;
    assert_eq!((fixture.connected("quic"), fixture.connected("ws")), (1, 0), "{}", fixture.hub.log());
}

/// UDP is blocked during a call and permitted again later.
#[tokio::test]
async fn blocked_udp_moves_a_call_to_a_websocket_and_back() {
    if !may_separate("blocked_udp_moves_a_call_to_a_websocket_and_back") {
        return;
    }
    let fixture = Fixture::start(&[QUIC, WS]).await;
    assert_eq!((fixture.connected("quic"), fixture.connected("ws")), (1, 0), "{}", fixture.hub.log());
    let call = fixture.held().await;
    fixture.networks.drop_packets(&["ipproto", "udp"]);
    wait::until("the agent connects over the websocket", async || {
        (fixture.connected("ws") == 1).then_some(())
    })
    .await;
    fixture.driver.release();
    fixture.ends_well(call).await;

    // A second call is open during the failback.
    fixture.driver.hold();
    let sidecar = Sidecar::new(controller(&fixture.cluster.proxy_socket()), CALL);
    let second = tokio::spawn(async move { sidecar.create("held-2").await });
    wait::until("the driver works again", async || {
        (fixture.driver.of("CreateVolume", "held-2").begun == 1).then_some(())
    })
    .await;
    fixture.networks.drop_nothing();
    wait::until("the agent is back on QUIC", async || (fixture.connected("quic") == 2).then_some(())).await;
    fixture.driver.release();
    let learnt = wait::within("the answer", second).await.unwrap();
    assert_eq!((learnt.result.unwrap(), learnt.attempts), (id_of("held-2"), 1));
    assert_eq!(fixture.driver.of("CreateVolume", "held-2").begun, 1);
}
