//! Calls over a link that is slow and loses packets.

use std::path::Path;
use std::time::{Duration, Instant};

use super::build::Programs;
use super::cable::Condition;
use super::chain::{DRIVER, Figures, Load, agent_of, free_port, hub_at, pause};
use super::link::Network;
use super::processes::Process;
use super::{PerfError, folder};
use crate::authority::Authority;

/// Round trip in milliseconds, and lost packets of 100.
const CONDITIONS: [(u64, f64); 3] = [(2, 0.0), (100, 1.0), (600, 5.0)];

/// The schemes of the hub's addresses.
const SCHEMES: [&str; 2] = ["wss", "quic"];

/// Time for which calls are made one after another.
const CALLS: Duration = Duration::from_secs(60);

/// How long the link then lets nothing pass.
const CUT: Duration = Duration::from_secs(15);

/// Longest wait for a connection or an answer.
const LIMIT: Duration = Duration::from_secs(120);

/// One row of the table.
struct Row {
    connect: Duration,
    calls: Figures,
    recover: Duration,
}

/// Measures and prints the table.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(programs: &Programs) -> Result<(), PerfError> {
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    println!(
        "CreateVolume and DeleteVolume for {} s; then nothing passes for {} s, and calls are made until one is answered.\n",
        CALLS.as_secs(),
        CUT.as_secs()
    );
    println!("| link | round trip, loss | connect | call p50 | call p99 | recover |");
    println!("|---|---|---|---|---|---|");
    for (number, (round_trip, percent)) in (0..).zip(CONDITIONS) {
        let condition = Condition { delay: Duration::from_millis(round_trip) / 2, loss: percent / 100.0 };
        for (other, scheme) in (0..).zip(SCHEMES) {
            let row = measure(2 * number + other, scheme, condition, programs, &authority, run.path())?;
            println!(
                "| {scheme} | {round_trip} ms, {percent} % | {} ms | {:.0} ms | {:.0} ms | {} ms |",
                row.connect.as_millis(),
                row.calls.p50 / 1e3,
                row.calls.p99 / 1e3,
                row.recover.as_millis(),
            );
        }
    }
    Ok(())
}

fn measure(
    number: u8,
    scheme: &str,
    condition: Condition,
    programs: &Programs,
    authority: &Authority,
    run: &Path,
) -> Result<Row, PerfError> {
    let folder = run.join(format!("far-{number}"));
    std::fs::create_dir_all(&folder).map_err(PerfError::io(format!("create {}", folder.display())))?;
    let unix = |name: &str| format!("unix://{}", folder.join(name).display());
    let network = Network::new(number, Some(condition))?;
    let url = format!("{scheme}://{}:{}", network.address(), free_port()?);
    let name = format!("far-{number}");
    let mut hub = hub_at(programs, authority, &format!("hub-far-{number}"), &url)?;
    let _hub = Process::start("hub", &folder, hub.args(["--listen", &unix("hub.sock")]))?;
    let mut driver = programs.rust("hostpath-driver");
    driver.args(["--drivername", DRIVER, "--nodeid", &name, "--endpoint", &unix("driver.sock")]);
    let _driver = Process::start("driver", &folder, driver.arg("--state-dir").arg(folder.join("driver")))?;
    let mut proxy = programs.rust("edge-csi-driver");
    proxy.args(["--drivername", DRIVER, "--nodeid", &name, "--endpoint", &unix("csi.sock")]);
    proxy.args(["--hub", &unix("hub.sock")]).arg("--state-dir").arg(folder.join("proxy"));
    let _proxy = Process::start("proxy", &folder, &mut proxy)?;
    pause(Duration::from_secs(2));
    let mut agent = agent_of(programs, authority, &name, &url, &unix("driver.sock"))?;
    agent.arg("--state-dir").arg(folder.join("agent"));
    let begun = Instant::now();
    let _agent = Process::start("agent", &folder, &mut network.within(&agent))?;
    let log = folder.join("agent.log");
    let is_connected =
        || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("connected to the hub"));
    while !is_connected() && begun.elapsed() < LIMIT {
        pause(Duration::from_millis(5));
    }
    let connect = begun.elapsed();
    let endpoint = unix("csi.sock");
    answered(programs, &endpoint)?;
    let load = Load { work: "create-delete", ..Load::new(CALLS.as_secs_f64()) };
    let calls = load.run(programs, &endpoint)?;
    network.cut(true);
    pause(CUT);
    network.cut(false);
    Ok(Row { connect, calls, recover: answered(programs, &endpoint)? })
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
