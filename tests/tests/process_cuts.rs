//! Calls over links that are cut, slow or lossy. A call survives its link, and the driver executes each operation once.
//!
//! `EDGE_CSI_CUT_SECONDS` makes the runs longer; `EDGE_CSI_SEED` repeats one, as far as time allows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]
#![allow(clippy::print_stdout, reason = "figures are for the person that runs it")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use edge_csi_tests::cable::{Cable, Plan};
use edge_csi_tests::cluster::TestCluster;
use edge_csi_tests::counting::{Counting, id_of};
use edge_csi_tests::csi::{controller, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::sidecar::Sidecar;
use edge_csi_tests::{metrics, wait};
use tokio::task::JoinSet;

/// Number of concurrent callers.
const CALLERS: usize = 8;

/// Timeout of a sidecar's call, longer than any call should take here: a second attempt would hide a lost answer.
const CALL: Duration = Duration::from_secs(60);

/// Duration of the driver's work, so long that some calls are open at every cut.
const WORK: Duration = Duration::from_millis(200);

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

async fn cable(over: LinkKind, hub: SocketAddr, plan: Plan) -> Cable {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let cable = match over {
        LinkKind::Quic | LinkKind::QuicInsecure => Cable::udp(any, hub, plan).await,
        _ => Cable::tcp(any, hub, plan).await,
    };
    cable.unwrap()
}

/// A cluster with a cable on each side of the hub.
struct Wired {
    cluster: TestCluster,
    driver: Counting,
    cables: [Cable; 2],
    _served: edge_csi_tests::counting::Served,
}

impl Wired {
    async fn start(over: LinkKind, plans: [Plan; 2], work: Duration) -> Self {
        let driver = Counting::working(work);
        let mut cluster = TestCluster::empty(over);
        let served = driver.serve(&cluster.driver_socket());
        cluster.start_hub().await.unwrap();
        let hub = cluster.hub_address();
        let cables = [cable(over, hub, plans[0]).await, cable(over, hub, plans[1]).await];
        cluster.dial_through(cables[0].address());
        cluster.start_agent(&[]).unwrap();
        cluster.dial_through(cables[1].address());
        cluster.start_proxy(&[]).unwrap();
        ready(&cluster.proxy_socket()).await;
        Self { cluster, driver, cables, _served: served }
    }

    /// Creates and deletes volumes for this long; returns their number and the longest time of one.
    async fn volumes(&self, time: Duration) -> (usize, Duration) {
        let until = Instant::now() + time;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let sidecar = Sidecar::new(controller(&self.cluster.proxy_socket()), CALL);
            callers.spawn(async move {
                let (mut volumes, mut slowest) = (Vec::new(), Duration::ZERO);
                while Instant::now() < until {
                    let since = Instant::now();
                    let name = format!("pvc-{caller}-{}", volumes.len());
                    let made = sidecar.create(&name).await;
                    assert_eq!(made.result.unwrap(), id_of(&name));
                    sidecar.delete(&id_of(&name)).await.result.unwrap();
                    volumes.push(name);
                    slowest = slowest.max(since.elapsed());
                }
                (volumes, slowest)
            });
        }
        let (mut volumes, mut slowest) = (Vec::new(), Duration::ZERO);
        while let Some(made) = tokio::time::timeout(time + 2 * CALL, callers.join_next()).await.unwrap() {
            let (made, took) = made.unwrap();
            volumes.extend(made);
            slowest = slowest.max(took);
        }
        for name in &volumes {
            for (method, volume) in [("CreateVolume", name.clone()), ("DeleteVolume", id_of(name))] {
                let executions = self.driver.of(method, &volume);
                assert_eq!((executions.begun, executions.ended), (1, 1), "{method} of {volume}");
            }
        }
        assert_eq!(self.driver.executions().len(), 2 * volumes.len());
        (volumes.len(), slowest)
    }
}

/// Callers retry as sidecars do, over links that are cut every two seconds. Every operation is executed once.
async fn once_over(over: LinkKind) {
    let (seconds, seed) = (number("EDGE_CSI_CUT_SECONDS", 20), number("EDGE_CSI_SEED", 1));
    println!("EDGE_CSI_SEED={seed} cargo test -p edge-csi-tests --test process_cuts");
    let every = |milliseconds| Plan {
        cut_every: Some(Duration::from_millis(milliseconds)),
        cut_for: Duration::from_millis(300),
        seed,
        ..Plan::default()
    };
    // Different intervals, so that each side is also cut alone.
    let wired = Wired::start(over, [every(2000), every(2300)], WORK).await;
    let (volumes, slowest) = wired.volumes(Duration::from_secs(seconds)).await;
    let cuts = wired.cables.each_ref().map(Cable::cuts);
    println!("{over:?}: {volumes} volumes, the slowest {slowest:?}; {cuts:?} cuts");
    assert!(cuts.iter().all(|cuts| *cuts + 3 >= seconds / 3), "{cuts:?}");
    wait::until("no call is open but the presence subscription", async || {
        let counts = metrics::of(wired.cluster.hub.as_ref().unwrap()).await;
        (counts["edge_transport_hub_open_calls"] == counts["edge_transport_hub_local_calls"]).then_some(())
    })
    .await;
}

/// The counting driver.
#[tokio::test]
async fn each_operation_runs_once_over_a_flapping_websocket() {
    once_over(LinkKind::Wss).await;
}

/// The counting driver.
#[tokio::test]
async fn each_operation_runs_once_over_flapping_quic() {
    once_over(LinkKind::Quic).await;
}

/// 1 % loss and a round trip of 200 ms.
#[tokio::test]
async fn a_slow_and_lossy_link_costs_only_time() {
    let seed = number("EDGE_CSI_SEED", 1);
    println!("EDGE_CSI_SEED={seed} cargo test -p edge-csi-tests --test process_cuts");
    let plan = Plan { delay: Duration::from_millis(50), loss_per_million: 10_000, seed, ..Plan::default() };
    for over in [LinkKind::Wss, LinkKind::Quic] {
        let wired = Wired::start(over, [plan, plan], Duration::ZERO).await;
        let (volumes, slowest) = wired.volumes(Duration::from_secs(5)).await;
        println!("{over:?}: {volumes} volumes, the slowest {slowest:?}");
    }
}

/// A cut lasts while the driver works, on each side of the hub in turn. The answer arrives after the cut.
#[tokio::test]
async fn an_answer_during_a_cut_arrives_after_it() {
    for over in [LinkKind::Wss, LinkKind::Quic] {
        let wired = Wired::start(over, [Plan::default(); 2], Duration::ZERO).await;
        let sidecar = Sidecar::new(controller(&wired.cluster.proxy_socket()), CALL);
        for (side, cable) in wired.cables.iter().enumerate() {
            let name = format!("held-{side}");
            let calling = tokio::spawn({
                let (sidecar, name) = (sidecar.clone(), name.clone());
                async move { sidecar.create(&name).await }
            });
            wait::until("the driver works", async || {
                (wired.driver.of("CreateVolume", &name).begun == 1).then_some(())
            })
            .await;
            cable.cut();
            wired.driver.release();
            wait::until("the driver is done", async || {
                (wired.driver.of("CreateVolume", &name).ended == 1).then_some(())
            })
            .await;
            assert!(!calling.is_finished());
            cable.restore();
            let learnt = wait::within("the answer", calling).await.unwrap();
            assert_eq!((learnt.result.unwrap(), learnt.attempts), (id_of(&name), 1), "{over:?}, side {side}");
            assert_eq!(wired.driver.of("CreateVolume", &name).begun, 1);
            wired.driver.hold();
        }
    }
}
