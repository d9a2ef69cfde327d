//! Hub, agent and proxy are killed in turn under load. No caller gets a final code that is not the driver's, no call is
//! stuck, and no process's memory grows.
//!
//! `EDGE_CSI_DRILL_SECONDS=600` makes the run longer. With `EDGE_CSI_DRILL_KILL=agent` only the agent is killed, so
//! that hub and proxy observe hundreds of its restarts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]
#![allow(clippy::print_stdout, reason = "figures are for the person that runs it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use edge_csi_tests::cluster::{NODE, TestCluster};
use edge_csi_tests::counting::{Counting, REFUSED, id_of, refusal};
use edge_csi_tests::csi::{controller, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::memory::MemorySamples;
use edge_csi_tests::process::Process;
use edge_csi_tests::random::Random;
use edge_csi_tests::sidecar::{FinalResult, Sidecar};
use edge_csi_tests::{metrics, wait};
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Number of concurrent callers.
const CALLERS: u64 = 8;

/// Timeout of a sidecar's call.
const CALL: Duration = Duration::from_secs(10);

/// Duration of the driver's work.
const WORK: Duration = Duration::from_millis(30);

/// Time limit of the open calls after the last kill.
const END: Duration = Duration::from_secs(60);

/// Permitted growth of the memory of a killed process from the first third of its instances to the last. Its instances
/// end at random times, so their memory varies.
const GROWTH_KIB: u64 = 16 << 10;

/// Permitted growth of the memory of a process that is never killed, from the sixth tenth of the run to the last. In
/// ten minutes a leak of 100 bytes per operation exceeds it, as does a leak of 16 KiB per killed process. Without a
/// leak the growth is below 100 KiB. The rest is for allocators that reserve memory in large pieces.
const LASTING_GROWTH_KIB: u64 = 2 << 10;

/// The processes that are killed.
const PARTS: [&str; 3] = ["hub", "agent", "proxy"];

/// The results of all callers.
#[derive(Debug, Default)]
struct Answers {
    operations: AtomicU64,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Answers {
    /// Counts an operation, and asserts that its result is the driver's own.
    fn check<T>(&self, what: &str, name: &str, learnt: FinalResult<T>) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.asked.fetch_add(u64::from(learnt.attempts), Ordering::Relaxed);
        let said = |status: Status| (status.code(), status.message().to_owned());
        if name.starts_with(REFUSED) && what == "create" {
            self.refused.fetch_add(1, Ordering::Relaxed);
            assert_eq!(learnt.result.err().map(said), Some((Code::FailedPrecondition, refusal(name))));
        } else if let Err(status) = learnt.result {
            panic!("{what} {name}: a final word that the driver did not say: {status:?}");
        }
    }
}

/// Runs one sidecar that creates, attaches, detaches and deletes volumes.
async fn caller(
    number: u64,
    sidecar: Sidecar,
    driver: Counting,
    reported: Arc<Answers>,
    stop: Arc<AtomicBool>,
) {
    for volume in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let refused = if volume % 10 == 9 { REFUSED } else { "" };
        let name = format!("{refused}pvc-{number}-{volume}");
        reported.check("create", &name, sidecar.create(&name).await);
        assert!(driver.of("CreateVolume", &name).begun > 0, "{name} was never asked of the driver");
        if refused.is_empty() {
            let id = id_of(&name);
            reported.check("publish", &name, sidecar.publish(&id, NODE).await);
            reported.check("unpublish", &name, sidecar.unpublish(&id, NODE).await);
            reported.check("delete", &name, sidecar.delete(&id).await);
            assert!(driver.of("DeleteVolume", &id).begun > 0, "{id} was never asked of the driver");
        }
        // A retried operation may still run, and is then counted again. There are few of them.
        driver.forget(&name);
    }
}

/// Kill -9 of hub, agent and proxy in turn.
#[tokio::test]
async fn final_codes_are_the_drivers_own_while_processes_are_killed() {
    let number = |variable: &str, usual| {
        std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (seconds, seed) = (number("EDGE_CSI_DRILL_SECONDS", 30), number("EDGE_CSI_SEED", 1_u64));
    let killed = std::env::var("EDGE_CSI_DRILL_KILL").unwrap_or_else(|_| PARTS.join(","));
    println!(
        "EDGE_CSI_DRILL_SECONDS={seconds} EDGE_CSI_DRILL_KILL={killed} EDGE_CSI_SEED={seed} \
         cargo test -p edge-csi-tests --test process_kills"
    );
    let victims: Vec<&str> = killed.split(',').collect();
    assert!(victims.iter().all(|victim| PARTS.contains(victim)), "{killed}: there are {PARTS:?}");
    let mut random = Random::new(seed);
    let driver = Counting::working(WORK);
    let mut cluster = TestCluster::empty(LinkKind::Wss);
    let _served = driver.serve(&cluster.driver_socket());
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    let proxy_state = cluster.path("proxy-state").to_string_lossy().into_owned();
    let proxy_options = ["--state-dir", proxy_state.as_str()];
    cluster.start_proxy(&proxy_options).unwrap();
    ready(&cluster.proxy_socket()).await;

    let (reported, stop) = (Arc::<Answers>::default(), Arc::<AtomicBool>::default());
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let sidecar = Sidecar::new(controller(&cluster.proxy_socket()), CALL);
        callers.spawn(caller(number, sidecar, driver.clone(), Arc::clone(&reported), Arc::clone(&stop)));
    }

    let length = Duration::from_secs(seconds);
    let (since, mut kills) = (Instant::now(), 0_usize);
    let mut memory: [Vec<u64>; 3] = [const { Vec::new() }; 3];
    let mut samples = PARTS.map(|_| MemorySamples::over(length));
    while since.elapsed() < length {
        let rest = match victims[..] {
            // Both ends reconnect, with a longer backoff after each link of less than a second.
            ["hub"] => 2000 + random.below(2000),
            ["agent" | "proxy"] => 500 + random.below(1000),
            _ => 1000 + random.below(2000),
        };
        tokio::time::sleep(Duration::from_millis(rest)).await;
        for (place, process) in [&cluster.hub, &cluster.agent, &cluster.proxy].into_iter().enumerate() {
            if let Some(kib) = process.as_ref().and_then(Process::resident_kib) {
                memory[place].push(kib);
                samples[place].note(since.elapsed(), kib);
            }
        }
        let away = Duration::from_millis(random.below(1000));
        match victims[kills % victims.len()] {
            "hub" => {
                cluster.hub = None;
                tokio::time::sleep(away).await;
                cluster.start_hub().await.unwrap();
            }
            "agent" => {
                cluster.agent = None;
                tokio::time::sleep(away).await;
                cluster.start_agent(&[]).unwrap();
            }
            _ => {
                cluster.proxy = None;
                tokio::time::sleep(away).await;
                cluster.start_proxy(&proxy_options).unwrap();
            }
        }
        kills += 1;
        // A caller panics if its check fails.
        if let Some(ended) = callers.try_join_next() {
            ended.unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let all = async {
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(END, all)
        .await
        .unwrap_or_else(|_| panic!("calls were stuck {END:?} after the last kill"));

    wait::until(
        "no call is open but the presence subscription, and nothing runs at the driver",
        async || {
            let counts = metrics::of(cluster.hub.as_ref().unwrap()).await;
            let idle = driver.executions().values().all(|executions| executions.begun == executions.ended);
            (counts["edge_transport_hub_open_calls"] == counts["edge_transport_hub_local_calls"]
                && counts["edge_transport_hub_queued_bytes"] == 0.0
                && idle)
                .then_some(())
        },
    )
    .await;
    let [operations, asked, refused] =
        [&reported.operations, &reported.asked, &reported.refused].map(|count| count.load(Ordering::Relaxed));
    println!("{kills} kills, {operations} operations, asked {asked} times, {refused} refused by the driver");
    assert!(operations > CALLERS && refused > 0);
    let survivors: Vec<usize> = (0..PARTS.len()).filter(|place| !victims.contains(&PARTS[*place])).collect();
    for place in (0..PARTS.len()).filter(|place| !survivors.contains(place)) {
        let (name, seen) = (PARTS[place], &memory[place]);
        let third = seen.len().div_ceil(3);
        let most = |part: &[u64]| part.iter().max().copied().unwrap_or_default();
        let (first, last) = (most(&seen[..third]), most(&seen[seen.len() - third..]));
        println!("{name}: most memory {first} KiB in the first third, {last} KiB in the last");
        assert!(last < first + GROWTH_KIB, "{name} grows: {seen:?}");
    }
    for place in survivors {
        let (name, samples) = (PARTS[place], &samples[place]);
        let process = [&mut cluster.hub, &mut cluster.agent, &mut cluster.proxy][place].as_mut();
        assert!(process.is_some_and(Process::runs), "{name} was not to end");
        let starts = samples.starts().map(|kib| kib.map_or_else(|| "-".to_owned(), |kib| kib.to_string()));
        println!("{name}, KiB at the start of each tenth of the run: {}", starts.join(" "));
        let growth =
            samples.growth().unwrap_or_else(|| panic!("too short a run to say whether {name} grows"));
        println!("{name}: {growth} KiB more in the last tenth than in the sixth");
        assert!(growth <= LASTING_GROWTH_KIB, "{name} grows: {samples:?}");
    }
}
