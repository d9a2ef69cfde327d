//! Three hubs side by side: neither an update of all of them nor the end of the one that has the node fails a call.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]
#![allow(clippy::print_stdout, reason = "figures are for the person that runs it")]

use std::path::PathBuf;
use std::process::Command;

use edge_csi_tests::binaries;
use edge_csi_tests::callers::Callers;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;

/// Number of concurrent callers.
const CALLERS: usize = 64;

/// The hubs, and a node, its driver and a proxy that know all of them.
struct Hubs {
    hubs: Vec<Process>,
    /// The number of hubs that were started.
    started: usize,
    cluster: TestCluster,
    _others: [Process; 2],
}

fn unix(path: &std::path::Path) -> String {
    format!("unix://{}", path.display())
}

impl Hubs {
    async fn start() -> Self {
        let mut cluster = TestCluster::empty(LinkKind::Uds);
        cluster.start_driver(&[]).unwrap();
        let urls: Vec<_> = (0..3).map(|hub| unix(&cluster.path(&format!("hub-{hub}.sock")))).collect();
        let driver = format!("{DRIVER}={}", unix(&cluster.driver_socket()));
        let state = cluster.path("agent-state");
        let state = state.to_string_lossy();
        let mut agent = vec!["--nodeid", NODE, "--state-dir", &state, "--driver", &driver];
        agent.extend(urls.iter().flat_map(|url| ["--hub", url]));
        let agent = Process::start(cluster.directory(), "agent", "edge-agent", agent);
        let (endpoint, all) = (unix(&cluster.proxy_socket()), urls.join(","));
        let proxy = ["--drivername", DRIVER, "--endpoint", &endpoint, "--nodeid", NODE, "--hub", &all, "-vv"];
        let proxy = Process::start(cluster.directory(), "proxy", "edge-csi-driver", proxy);
        let mut this = Self { hubs: Vec::new(), started: 0, cluster, _others: [agent, proxy] };
        for hub in 0..3 {
            let process = this.start_hub(hub).await;
            this.hubs.push(process);
        }
        ready(&this.socket()).await;
        this
    }

    fn socket(&self) -> PathBuf {
        self.cluster.proxy_socket()
    }

    /// Starts a hub, and waits until the proxy is connected to it.
    async fn start_hub(&mut self, hub: usize) -> Process {
        self.started += 1;
        let url = unix(&self.cluster.path(&format!("hub-{hub}.sock")));
        let name = format!("hub-{hub}-{}", self.started);
        let process = Process::start(self.cluster.directory(), &name, "edge-hub", ["--listen", &url]);
        process.logged("peer is up peer=proxy/").await;
        process
    }

    /// The hub to which the node is connected, other than one that was killed.
    async fn hub_of_node(&self, killed: Option<usize>) -> usize {
        let up = format!("peer is up peer={NODE}");
        let down = format!("peer is down peer={NODE}");
        wait::until("the node is at a hub", async || {
            (0..3).filter(|hub| Some(*hub) != killed).find(|hub| {
                let log = self.hubs[*hub].log();
                log.matches(&up).count() > log.matches(&down).count()
            })
        })
        .await
    }
}

/// Runs `change` under calls. Each call must succeed at once.
async fn under_calls(hubs: &mut Hubs, change: impl AsyncFnOnce(&mut Hubs)) {
    let callers = Callers::start(CALLERS, &[&hubs.socket()], create_volume);
    callers.under_way().await;
    change(hubs).await;
    let report = callers.stop().await;
    println!(
        "{} volumes; p99 of a call {:?}, the slowest took {:?}",
        report.volumes,
        report.p99(),
        report.slowest()
    );
    assert!(report.failed.is_empty() && report.repeated == 0, "{report:?}");
    assert!(report.volumes > CALLERS, "no call was made during the change");
}

#[tokio::test]
async fn an_update_of_all_hubs_fails_no_call() {
    let mut hubs = Hubs::start().await;
    under_calls(&mut hubs, async |hubs| {
        for hub in 0..3 {
            hubs.hubs[hub].terminate();
            assert!(hubs.hubs[hub].ended().await.success());
            hubs.hubs[hub] = hubs.start_hub(hub).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_hub_moves_its_node_to_another() {
    let mut hubs = Hubs::start().await;
    under_calls(&mut hubs, async |hubs| {
        for _ in 0..3 {
            let hub = hubs.hub_of_node(None).await;
            hubs.hubs[hub].kill();
            hubs.hub_of_node(Some(hub)).await;
            hubs.hubs[hub] = hubs.start_hub(hub).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_operator_moves_the_nodes_of_a_hub() {
    let mut hubs = Hubs::start().await;
    let hub = hubs.hub_of_node(None).await;
    under_calls(&mut hubs, async |hubs| {
        let socket = unix(&hubs.cluster.path(&format!("hub-{hub}.sock")));
        let rebalance = ["rebalance", "--percent", "100", "--hub", &socket];
        let mut command = Command::new(binaries::path("edge-hub"));
        command.args(rebalance);
        // Not on this thread, which runs the callers.
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.ends_with("another hub: 1\n"), "{output:?}");
        hubs.hub_of_node(Some(hub)).await;
    })
    .await;
    let nowhere = ["rebalance", "--percent", "100", "--hub", "unix:///no/such/hub.sock"];
    let output = Command::new(binaries::path("edge-hub")).args(nowhere).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("no hub listens on this socket"), "{output:?}");
}
