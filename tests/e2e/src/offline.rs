//! The sidecars as real processes while everything behind the socket is offline: they start, keep running, and work when the
//! edge connects.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use edge_csi_tests::cluster::Role;
use edge_csi_tests::process::Process;
use edge_csi_tests::{port, wait};
use serde::Deserialize;

use super::driver::{CLASSIFIED, DriverUnderTest};
use super::error::E2eError;
use super::setup::Setup;
use super::table::Fact;

/// The variable with a number of minutes: how long `sidecars-offline` keeps the edge offline, how long `kubernetes-hub`
/// keeps the hub offline, and how long `kubernetes-own-storm` repeats its rounds, which are then larger. If the
/// variable is unset, the edge is offline until each sidecar has sent twenty Probes, and `kubernetes-own-storm` has one
/// small round.
const MINUTES: &str = "EDGE_CSI_MINUTES";

/// Returns the duration in [`MINUTES`], or zero if it is unset.
pub(crate) fn length() -> Result<Duration, E2eError> {
    let Some(text) = std::env::var_os(MINUTES) else { return Ok(Duration::ZERO) };
    let minutes: Option<u64> =
        text.to_str().and_then(|text| text.parse().ok()).filter(|&minutes| minutes <= 1440);
    let cause =
        || E2eError::Variable { name: MINUTES, found: text, expected: "a number of minutes, at most 1440" };
    minutes.map(|minutes| Duration::from_secs(minutes * 60)).ok_or_else(cause)
}

/// The minimum time that the edge is offline.
const SHORT: Duration = Duration::from_secs(10);

/// The time limit for the median of calls without a node. A single call may take longer on a busy host.
const MEDIAN_LIMIT: Duration = Duration::from_millis(100);

/// The time after its start during which edge-csi-driver lets a call wait for a hub.
const GRACE: &str = "30s";

/// The timeout of a call to edge-csi-driver.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The responses of the socket in one round of calls.
#[derive(Debug, Deserialize)]
struct Round {
    /// The readiness that Probe reports.
    ready: bool,
    /// Name and capabilities.
    facts: String,
    /// The status code of a call that needs the driver.
    code: String,
    /// The duration of that call.
    micros: u64,
}

/// Probes to wait for; a sidecar sends one a second.
const PROBES: usize = 20;

/// Time limit for these Probes, and for anything that should happen immediately.
const BOUND: Duration = Duration::from_secs(90);

/// A sidecar's log message for each Probe that reports a driver as not ready.
const NOT_READY: &str = "CSI driver is not ready";

/// edge-csi-driver's log message when it can no longer reach the driver.
const NOT_READY_LOGGED: &str = "driver unreachable, Probe reports not ready";

/// The sidecars, each with the log message that it prints when it is initialized and waits for work.
const SIDECARS: [(&str, &str); 4] = [
    ("csi-provisioner", "Started provisioner controller"),
    ("csi-attacher", "Starting CSI attacher"),
    ("csi-resizer", "Starting external resizer"),
    ("csi-snapshotter", "Starting CSI snapshotter"),
];

/// Checks that sidecars start and stay up while the edge is offline, and continue without a restart.
pub(crate) fn run(setup: Setup<'_>) -> Result<Vec<Fact>, E2eError> {
    let port = port::free();
    let listen = format!("127.0.0.1:{port}");
    let mut api = Process::spawn(
        setup.logs,
        "api",
        Command::new(&setup.components.sidecars).args(["api", "--listen", &listen]),
    )?;
    api.ready("its port", || std::net::TcpStream::connect(&listen).is_ok())?;
    let kubeconfig = setup.scratch.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://{listen}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).map_err(|cause| E2eError::File { path: kubeconfig.clone(), cause })?;

    let mut driver = DriverUnderTest::offline(setup)?;
    let mut facts = Vec::new();
    let mut sidecars = start(setup, &driver, &kubeconfig)?;
    waits(&mut sidecars, setup.logs, "before the edge was ever online", &mut facts);
    driver.come_online(setup)?;
    works(&mut sidecars, setup.logs, "when the edge connects", &mut facts);
    let online = rounds("plane-online", Duration::ZERO, setup, &driver)?;

    for process in [Role::Hub, Role::Agent, Role::Driver] {
        driver.kill(process);
    }
    answers(setup, &driver, &mut facts)?;
    for (sidecar, _) in &mut sidecars {
        let words = format!("{} keeps running when the edge goes offline", sidecar.name());
        facts.push(Fact { words, right: sidecar.runs() });
    }
    drop(sidecars);
    // A sidecar that starts before edge-csi-driver's next check still gets the response that the driver is ready. A call of
    // Probe causes the check.
    rounds("plane-noticed", Duration::ZERO, setup, &driver)?;
    let noticed =
        wait::poll(BOUND, || (log(setup.logs, "proxy").matches(NOT_READY_LOGGED).count() > 1).then_some(()));
    facts.push(Fact {
        words: "edge-csi-driver notices that the edge is offline".to_owned(),
        right: noticed.is_some(),
    });
    let mut sidecars = start(setup, &driver, &kubeconfig)?;
    let length = length()?.max(SHORT);
    let offline = rounds("plane-offline", length, setup, &driver)?;
    compare(&online, &offline, length, &mut facts);
    waits(&mut sidecars, setup.logs, "started while the edge is offline", &mut facts);
    waits_for_the_hub(setup, &mut facts)?;
    std::fs::remove_file(&driver.node)
        .map_err(|cause| E2eError::File { path: driver.node.clone(), cause })?;
    driver.come_online(setup)?;
    works(&mut sidecars, setup.logs, "when the edge is online again", &mut facts);
    drop(sidecars);
    driver.stop()?;
    Ok(facts)
}

fn start(
    setup: Setup<'_>,
    driver: &DriverUnderTest,
    kubeconfig: &Path,
) -> Result<Vec<(Process, &'static str)>, E2eError> {
    let socket = driver.controller.as_deref().unwrap_or(&driver.node);
    let start = |(name, works): (&'static str, &'static str)| {
        let arguments = [
            "--kubeconfig".as_ref(),
            kubeconfig.as_os_str(),
            "--csi-address".as_ref(),
            socket.as_os_str(),
            "--timeout".as_ref(),
            "10s".as_ref(),
            "--v".as_ref(),
            "5".as_ref(),
        ];
        let process =
            Process::spawn(setup.logs, name, Command::new(setup.components.sidecar(name)).args(arguments))?;
        Ok((process, works))
    };
    SIDECARS.into_iter().map(start).collect()
}

/// Checks that the sidecars keep sending Probes.
fn waits(sidecars: &mut [(Process, &'static str)], logs: &Path, when: &str, facts: &mut Vec<Fact>) {
    for (sidecar, _) in sidecars {
        let name = sidecar.name().to_owned();
        let waited = wait::poll(BOUND, || {
            let asked = log(logs, &name).matches(NOT_READY).count();
            (asked >= PROBES || !sidecar.runs()).then_some(asked)
        });
        let (asked, runs) = (waited.unwrap_or_default(), sidecar.runs());
        let words = format!(
            "{name}, {when}: {asked} times not ready, and {}",
            if runs { "still running" } else { "ended" }
        );
        facts.push(Fact { words, right: runs && asked >= PROBES });
    }
}

/// Checks that the sidecars have read name and capabilities, and wait for work.
fn works(sidecars: &mut [(Process, &'static str)], logs: &Path, when: &str, facts: &mut Vec<Fact>) {
    for (sidecar, works) in sidecars {
        let name = sidecar.name().to_owned();
        let working =
            wait::poll(BOUND, || (log(logs, &name).contains(*works) || !sidecar.runs()).then_some(()));
        let right = working.is_some() && sidecar.runs();
        let words =
            format!("{name} {} {when}", if right { "starts to work" } else { "does not start to work" });
        facts.push(Fact { words, right });
    }
}

/// Returns the responses of the socket for this length of time, round by round.
fn rounds(
    name: &'static str,
    length: Duration,
    setup: Setup<'_>,
    driver: &DriverUnderTest,
) -> Result<Vec<Round>, E2eError> {
    let seconds = format!("{}s", length.as_secs());
    let more = ["--for", &seconds, "--every", "1s"];
    let socket = driver.controller.as_deref().unwrap_or(&driver.node);
    let mut client = Process::spawn(
        setup.logs,
        name,
        Command::new(&setup.components.sidecars).args(arguments("plane", socket, &more)),
    )?;
    client.finish(length + BOUND)?;
    let (said, path) = (log(setup.logs, name), setup.logs.join(format!("{name}.log")));
    // The Go library prints lines that are not JSON.
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let rounds = lines.map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
    let cause = |error: serde_json::Error| error.to_string();
    rounds.map_err(|error| E2eError::Report { path, cause: cause(error), tail: client.tail() })
}

/// Compares the offline responses with the online ones.
fn compare(online: &[Round], offline: &[Round], length: Duration, facts: &mut Vec<Fact>) {
    let known = online.first().filter(|round| round.ready && round.code == "OK");
    let Some(known) = known else {
        let words = format!("with the edge online, the socket answers {online:?}; expected ready and OK");
        return facts.push(Fact { words, right: false });
    };
    let turns = offline.len();
    let count = |holds: &dyn Fn(&Round) -> bool| offline.iter().filter(|round| holds(round)).count();
    let (not_ready, same) = (count(&|round| !round.ready), count(&|round| round.facts == known.facts));
    // One round a second, with a margin: fewer rounds would mean that the socket was closed.
    let enough = turns as u64 >= length.as_secs() / 2;
    let words = format!(
        "edge offline for {} s: of {turns} rounds, {not_ready} times not ready, {same} times name and capabilities as before",
        length.as_secs()
    );
    facts.push(Fact { words, right: enough && not_ready == turns && same == turns });
    let mut times: Vec<Duration> = offline.iter().map(|round| Duration::from_micros(round.micros)).collect();
    times.sort_unstable();
    let at = |part: usize| times.get(turns.saturating_sub(1) * part / 100).copied().unwrap_or_default();
    let unavailable = count(&|round| round.code == "Unavailable");
    let words = format!(
        "a call that only the driver can answer: {unavailable} times Unavailable, after {:?} (median), at most {:?}",
        at(50),
        at(100)
    );
    facts.push(Fact { words, right: turns > 0 && unavailable == turns && at(50) < MEDIAN_LIMIT });
}

/// Checks that, with a reconnect grace, a call waits for the edge almost until its caller's deadline.
fn waits_for_the_hub(setup: Setup<'_>, facts: &mut Vec<Fact>) -> Result<(), E2eError> {
    let waiting = DriverUnderTest::waiting(GRACE, setup)?;
    let socket = waiting.controller.as_deref().unwrap_or(&waiting.node);
    let timeout = format!("{}s", CALL_TIMEOUT.as_secs());
    let more = ["--logic", "client", "--timeout", &timeout];
    let begun = Instant::now();
    Process::spawn(
        setup.logs,
        "ask-waiting",
        Command::new(&setup.components.sidecars).args(arguments("ask", socket, &more)),
    )?
    .finish(BOUND)?;
    let took = begun.elapsed();
    drop(waiting);
    let said = log(setup.logs, "ask-waiting");
    let decision = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    // The call ends slightly before its caller's deadline, with the reason.
    let right = decision.contains(r#""code":"Unavailable""#) && took > CALL_TIMEOUT / 2;
    let words = format!(
        "with --reconnect-grace {GRACE}, a call with {timeout} to wait ends after {took:.1?}: {decision}"
    );
    facts.push(Fact { words, right });
    Ok(())
}

/// Checks that a call fails immediately while the edge is offline.
fn answers(setup: Setup<'_>, driver: &DriverUnderTest, facts: &mut Vec<Fact>) -> Result<(), E2eError> {
    let socket = driver.controller.as_deref().unwrap_or(&driver.node);
    let arguments = arguments("ask", socket, &["--logic", "provisioner"]);
    Process::spawn(setup.logs, "ask", Command::new(&setup.components.sidecars).args(arguments))?
        .finish(BOUND)?;
    let said = log(setup.logs, "ask");
    let decision = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let right = decision.contains(r#""code":"Unavailable","final":false"#);
    facts.push(Fact { words: format!("a claim while the edge is offline: {decision}"), right });
    Ok(())
}

/// Returns the arguments of the program that calls as the sidecars do.
fn arguments(command: &str, socket: &Path, more: &[&str]) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec![command.into(), "--endpoint".into(), socket.into()];
    all.extend(["--drivername", CLASSIFIED].map(Into::into));
    all.extend(more.iter().map(Into::into));
    all
}

fn log(logs: &Path, name: &str) -> String {
    std::fs::read_to_string(logs.join(format!("{name}.log"))).unwrap_or_default()
}
