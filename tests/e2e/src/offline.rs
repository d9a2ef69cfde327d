//! The sidecars as the processes that they are, while everything behind the socket is off: they come up, stay up, and go
//! to work when it comes.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use edge_csi_tests::process::Process;
use edge_csi_tests::{port, wait};
use serde::Deserialize;

use super::error::RealError;
use super::setup::Setup;
use super::stack::{CLASSIFIED, Stack};
use super::table::Fact;

/// Minutes that sidecars-offline keeps the edge off under the sidecars, and kubernetes-hub the hub, and that the rounds of
/// kubernetes-own-storm go on, which are larger then; without it, as long as it takes them to ask twenty times whether the driver
/// is ready, and one small round.
const MINUTES: &str = "EDGE_CSI_MINUTES";

/// How long that is.
pub(crate) fn length() -> Result<Duration, RealError> {
    let Some(text) = std::env::var_os(MINUTES) else { return Ok(Duration::ZERO) };
    let minutes: Option<u64> =
        text.to_str().and_then(|text| text.parse().ok()).filter(|&minutes| minutes <= 1440);
    let cause =
        || RealError::Variable { name: MINUTES, found: text, expected: "a number of minutes, at most 1440" };
    minutes.map(|minutes| Duration::from_secs(minutes * 60)).ok_or_else(cause)
}

/// How long the edge is off at least.
const SHORT: Duration = Duration::from_secs(10);

/// Within this time a call ends for which nobody is there. Half of them have to keep to it: the host is shared.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How long after its start edge-csi-driver lets a call wait for a hub.
const GRACE: &str = "30s";

/// What who asks it then waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the socket answered at one moment.
#[derive(Debug, Deserialize)]
struct Plane {
    /// What Probe says.
    ready: bool,
    /// Name and capabilities.
    facts: String,
    /// How a call ended that only the driver can answer.
    code: String,
    /// How long that took.
    micros: u64,
}

/// A sidecar asks once a second whether the driver is ready.
const PROBES: usize = 20;

/// Time for that, and for what should happen at once.
const BOUND: Duration = Duration::from_secs(90);

/// What a sidecar logs for each Probe that says that the driver is not ready.
const NOT_READY: &str = "CSI driver is not ready";

/// What edge-csi-driver logs when it can no longer reach the driver.
const TOLD: &str = "sidecars are told that it is not ready";

/// The sidecars: their names, and what each logs when it has all that it needs of the driver and looks for work.
const SIDECARS: [(&str, &str); 4] = [
    ("csi-provisioner", "Started provisioner controller"),
    ("csi-attacher", "Starting CSI attacher"),
    ("csi-resizer", "Starting external resizer"),
    ("csi-snapshotter", "Starting CSI snapshotter"),
];

/// Anchors of the relay, (f) 15: with the edge off the sidecars start and stay, and they need no start to go on.
pub(crate) fn run(setup: Setup<'_>) -> Result<Vec<Fact>, RealError> {
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
    std::fs::write(&kubeconfig, text).map_err(|cause| RealError::File { path: kubeconfig.clone(), cause })?;

    let mut stack = Stack::offline(setup)?;
    let mut facts = Vec::new();
    let mut sidecars = start(setup, &stack, &kubeconfig)?;
    waits(&mut sidecars, setup.logs, "never having seen the edge", &mut facts);
    stack.come_online(setup)?;
    works(&mut sidecars, setup.logs, "when the edge comes", &mut facts);
    let online = planes("plane-online", Duration::ZERO, setup, &stack)?;

    for process in ["hub", "agent", "driver"] {
        stack.kill(process);
    }
    answers(setup, &stack, &mut facts)?;
    for (sidecar, _) in &mut sidecars {
        let words = format!("{} stays when the edge goes", sidecar.name());
        facts.push(Fact { words, right: sidecar.runs() });
    }
    drop(sidecars);
    // Who starts before edge-csi-driver has asked once more is still told that the driver is ready.
    let noticed = wait::poll(BOUND, || (log(setup.logs, "endpoint").matches(TOLD).count() > 1).then_some(()));
    facts.push(Fact { words: "edge-csi-driver notices it".to_owned(), right: noticed.is_some() });
    let mut sidecars = start(setup, &stack, &kubeconfig)?;
    let length = length()?.max(SHORT);
    let offline = planes("plane-offline", length, setup, &stack)?;
    compare(&online, &offline, length, &mut facts);
    waits(&mut sidecars, setup.logs, "started while the edge is off", &mut facts);
    waits_for_the_hub(setup, &mut facts)?;
    std::fs::remove_file(&stack.node).map_err(|cause| RealError::File { path: stack.node.clone(), cause })?;
    stack.come_online(setup)?;
    works(&mut sidecars, setup.logs, "when the edge is back", &mut facts);
    drop(sidecars);
    stack.stop()?;
    Ok(facts)
}

fn start(
    setup: Setup<'_>,
    stack: &Stack,
    kubeconfig: &Path,
) -> Result<Vec<(Process, &'static str)>, RealError> {
    let socket = stack.controller.as_deref().unwrap_or(&stack.node);
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

/// They ask whether the driver is ready, and go on asking.
fn waits(sidecars: &mut [(Process, &'static str)], logs: &Path, when: &str, facts: &mut Vec<Fact>) {
    for (sidecar, _) in sidecars {
        let name = sidecar.name().to_owned();
        let waited = wait::poll(BOUND, || {
            let asked = log(logs, &name).matches(NOT_READY).count();
            (asked >= PROBES || !sidecar.runs()).then_some(asked)
        });
        let (asked, runs) = (waited.unwrap_or_default(), sidecar.runs());
        let words = format!(
            "{name}, {when}: {asked} times told that the driver is not ready, and {}",
            if runs { "still there" } else { "gone" }
        );
        facts.push(Fact { words, right: runs && asked >= PROBES });
    }
}

/// They have asked for name and capabilities, and look for work.
fn works(sidecars: &mut [(Process, &'static str)], logs: &Path, when: &str, facts: &mut Vec<Fact>) {
    for (sidecar, works) in sidecars {
        let name = sidecar.name().to_owned();
        let working =
            wait::poll(BOUND, || (log(logs, &name).contains(*works) || !sidecar.runs()).then_some(()));
        let right = working.is_some() && sidecar.runs();
        let words = format!("{name} {} to work {when}", if right { "goes" } else { "does not go" });
        facts.push(Fact { words, right });
    }
}

/// What the socket answers, for so long, turn by turn.
fn planes(
    name: &'static str,
    length: Duration,
    setup: Setup<'_>,
    stack: &Stack,
) -> Result<Vec<Plane>, RealError> {
    let seconds = format!("{}s", length.as_secs());
    let more = ["--for", &seconds, "--every", "1s"];
    let socket = stack.controller.as_deref().unwrap_or(&stack.node);
    let mut asker = Process::spawn(
        setup.logs,
        name,
        Command::new(&setup.components.sidecars).args(arguments("plane", socket, &more)),
    )?;
    asker.finish(length + BOUND)?;
    let (said, path) = (log(setup.logs, name), setup.logs.join(format!("{name}.log")));
    // The Go library says more than what is asked of it.
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let planes = lines.map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
    let cause = |error: serde_json::Error| error.to_string();
    planes.map_err(|error| RealError::Report { path, cause: cause(error), tail: asker.tail() })
}

/// What was answered with the edge off, against what was with it on.
fn compare(online: &[Plane], offline: &[Plane], length: Duration, facts: &mut Vec<Fact>) {
    let known = online.first().filter(|plane| plane.ready && plane.code == "OK");
    let Some(known) = known else {
        let words = format!("with the edge on, the socket answers {online:?}");
        return facts.push(Fact { words, right: false });
    };
    let turns = offline.len();
    let count = |holds: &dyn Fn(&Plane) -> bool| offline.iter().filter(|plane| holds(plane)).count();
    let (not_ready, same) = (count(&|plane| !plane.ready), count(&|plane| plane.facts == known.facts));
    // A turn each second, and that with a margin: less would mean that the socket was closed.
    let enough = turns as u64 >= length.as_secs() / 2;
    let words = format!(
        "edge off for {} s: of {turns} turns, {not_ready} times not ready, {same} times name and capabilities as before",
        length.as_secs()
    );
    facts.push(Fact { words, right: enough && not_ready == turns && same == turns });
    let mut times: Vec<Duration> = offline.iter().map(|plane| Duration::from_micros(plane.micros)).collect();
    times.sort_unstable();
    let at = |part: usize| times.get(turns.saturating_sub(1) * part / 100).copied().unwrap_or_default();
    let unavailable = count(&|plane| plane.code == "Unavailable");
    let words = format!(
        "a call that the driver has to answer: {unavailable} times Unavailable, after {:?} (half of them), at most {:?}",
        at(50),
        at(100)
    );
    facts.push(Fact { words, right: turns > 0 && unavailable == turns && at(50) < AT_ONCE });
}

/// By policy, a call waits for the edge about as long as its caller does.
fn waits_for_the_hub(setup: Setup<'_>, facts: &mut Vec<Fact>) -> Result<(), RealError> {
    let (endpoint, socket) = Stack::waiting(GRACE, setup)?;
    let timeout = format!("{}s", PATIENCE.as_secs());
    let more = ["--logic", "client", "--timeout", &timeout];
    let begun = Instant::now();
    Process::spawn(
        setup.logs,
        "ask-waiting",
        Command::new(&setup.components.sidecars).args(arguments("ask", &socket, &more)),
    )?
    .finish(BOUND)?;
    let took = begun.elapsed();
    drop(endpoint);
    let said = log(setup.logs, "ask-waiting");
    let verdict = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    // It ends a little before its caller's time, with the reason.
    let right = verdict.contains(r#""code":"Unavailable""#) && took > PATIENCE / 2;
    let words = format!(
        "with --reconnect-grace {GRACE}, a call with {timeout} to wait ends after {took:.1?}: {verdict}"
    );
    facts.push(Fact { words, right });
    Ok(())
}

/// A call while the edge is off fails by itself, at once.
fn answers(setup: Setup<'_>, stack: &Stack, facts: &mut Vec<Fact>) -> Result<(), RealError> {
    let socket = stack.controller.as_deref().unwrap_or(&stack.node);
    let arguments = arguments("ask", socket, &["--logic", "provisioner"]);
    Process::spawn(setup.logs, "ask", Command::new(&setup.components.sidecars).args(arguments))?
        .finish(BOUND)?;
    let said = log(setup.logs, "ask");
    let verdict = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let right = verdict.contains(r#""code":"Unavailable","final":false"#);
    facts.push(Fact { words: format!("a claim while the edge is off: {verdict}"), right });
    Ok(())
}

/// Arguments of the program that asks as the sidecars do.
fn arguments(command: &str, socket: &Path, more: &[&str]) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec![command.into(), "--endpoint".into(), socket.into()];
    all.extend(["--drivername", CLASSIFIED].map(Into::into));
    all.extend(more.iter().map(Into::into));
    all
}

fn log(logs: &Path, name: &str) -> String {
    std::fs::read_to_string(logs.join(format!("{name}.log"))).unwrap_or_default()
}
