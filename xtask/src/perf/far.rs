//! Calls over a link that is slow and loses packets.

use std::path::Path;
use std::time::{Duration, Instant};

use super::PerfError;
use super::build::Programs;
use super::cable::Condition;
use super::carrier::{Carrier, LARGE, Place};
use super::chain::{DRIVER, Figures, Load, pause};
use super::network::Network;
use super::processes::Process;
use crate::authority::Authority;

/// Round trip in milliseconds, and lost packets of 100.
const CONDITIONS: [(u64, f64); 3] = [(2, 0.0), (100, 1.0), (600, 5.0)];

/// What carries the calls.
const LINKS: [(&str, Carrier); 4] = [
    ("wss", Carrier::Relay("wss", &[])),
    ("quic", Carrier::Relay("quic", &[])),
    ("ssh -R", Carrier::Ssh),
    ("frp", Carrier::Frp),
];

/// Time for which calls are made one after another.
const CALLS: Duration = Duration::from_secs(60);

/// How long a link that is cut lets nothing pass: for longer than an agent waits for an answer.
pub(super) const CUT: Duration = Duration::from_secs(15);

/// Time for which calls are made beside large answers, one of each at a time, and the size of such an answer.
const BESIDE: Duration = Duration::from_secs(20);
const LARGE_BYTES: usize = 4_000_000;

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(120);

/// One row of the table.
struct Row {
    connect: Duration,
    calls: Figures,
    /// Calls beside large answers, and the large answers.
    beside: [Figures; 2],
    recover: Duration,
}

/// Measures and prints the table.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(
    programs: &Programs,
    authority: &Authority,
    run: &Path,
    is_measured: impl Fn(Carrier) -> bool,
) -> Result<(), PerfError> {
    let tcp = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    println!(
        "CreateVolume and DeleteVolume for {} s; then for {} s beside answers of {LARGE_BYTES} bytes, one after another; then \
         nothing passes for {} s, and calls are made until one is answered. TCP has {} of this kernel, \
         QUIC has CUBIC.\n",
        CALLS.as_secs(),
        BESIDE.as_secs(),
        CUT.as_secs(),
        tcp.trim()
    );
    println!(
        "| link | round trip, loss | first answer | call p50 | call p99 | large answer | beside it: calls | p50 | p99 | recover |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut number = 0;
    for (round_trip, percent) in CONDITIONS {
        let condition = Condition { delay: Duration::from_millis(round_trip) / 2, loss: percent / 100.0 };
        for (link, carrier) in LINKS.into_iter().filter(|(_, carrier)| is_measured(*carrier)) {
            number += 1;
            let (name, network) = (format!("far-{number}"), Network::new(number, Some(condition))?);
            let folder = run.join(&name);
            std::fs::create_dir_all(&folder)
                .map_err(PerfError::io(format!("create {}", folder.display())))?;
            let place = Place { name: &name, folder: &folder, programs, authority };
            let row = measure(carrier, &place, &network)?;
            let [beside, large] = row.beside;
            let failed = match beside.errors + large.errors {
                0 => String::new(),
                failed => format!(", {failed} calls failed"),
            };
            // Without an answer there is no figure.
            let beside = match beside.calls {
                0 => "0 | |".to_owned(),
                calls => format!("{calls} | {:.0} ms | {:.0} ms", beside.p50 / 1e3, beside.p99 / 1e3),
            };
            let large = match large.calls {
                0 => format!("over {} s{failed}", BESIDE.as_secs()),
                _ => format!("{:.0} ms{failed}", large.p50 / 1e3),
            };
            println!(
                "| {link} | {round_trip} ms, {percent} % | {} ms | {:.0} ms | {:.0} ms | {large} | {beside} | {} ms |",
                row.connect.as_millis(),
                row.calls.p50 / 1e3,
                row.calls.p99 / 1e3,
                row.recover.as_millis(),
            );
        }
    }
    Ok(())
}

fn measure(carrier: Carrier, place: &Place<'_>, network: &Network) -> Result<Row, PerfError> {
    let Place { folder, programs, .. } = *place;
    let ends = carrier.start(place, network, &[DRIVER, LARGE])?;
    let mut large_driver = programs.rust("bench-driver");
    large_driver.args(["--reply-bytes", &LARGE_BYTES.to_string(), "--socket"]).arg(place.driver(LARGE));
    let mut running =
        vec![ends.near, place.start_driver()?, Process::start("large driver", folder, &mut large_driver)?];
    for mut command in ends.rest {
        running.push(Process::start("proxy", folder, &mut command)?);
    }
    pause(Duration::from_secs(2));
    let [endpoint, large] = [&ends.endpoints[0], &ends.endpoints[1]];
    let begun = Instant::now();
    running.push(Process::start("agent", folder, &mut network.within(&ends.far))?);
    answered(programs, endpoint)?;
    let connect = begun.elapsed();
    let small = |seconds: Duration| Load {
        work: "create-delete",
        tolerate: true,
        ..Load::new(seconds.as_secs_f64())
    };
    let calls = small(CALLS).run(programs, endpoint)?;
    let beside = std::thread::scope(|scope| {
        // An answer of this size is refused, unless it is a list.
        let load = Load { work: "list-volumes", tolerate: true, ..Load::new(BESIDE.as_secs_f64()) };
        let large = scope.spawn(move || load.run(programs, large));
        let beside = small(BESIDE).run(programs, endpoint)?;
        let large = large.join().map_err(|_| PerfError::ended_early("load"))??;
        Ok::<_, PerfError>([beside, large])
    })?;
    network.cut(true)?;
    pause(CUT);
    network.cut(false)?;
    Ok(Row { connect, calls, beside, recover: answered(programs, endpoint)? })
}

/// Makes calls until one is answered, and returns how long that took.
fn answered(programs: &Programs, endpoint: &str) -> Result<Duration, PerfError> {
    let begun = Instant::now();
    loop {
        let outcome = Load { work: "create-delete", ..Load::new(0.0) }.run(programs, endpoint);
        if outcome.is_ok() || begun.elapsed() > LIMIT {
            return outcome.map(|_| begun.elapsed());
        }
        pause(Duration::from_millis(50));
    }
}
