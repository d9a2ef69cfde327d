//! The reaction of the sidecars to responses of the relay: the error classifiers of external-provisioner and external-attacher,
//! run on every status code of a driver and on every fault of the relay.

use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use edge_csi_tests::cluster::Role;
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use serde::Deserialize;

use super::driver::{CLASSIFIED, DriverUnderTest};
use super::error::E2eError;
use super::setup::{Folders, Setup};
use super::table::Fact;

/// Timeout of a sidecar's call: longer than the reconnect grace, so that all faults of the relay are reported within it.
const CALL_TIMEOUT: &str = "45s";

/// Timeout of a call that must end by its timeout.
const SHORT_CALL_TIMEOUT: &str = "3s";

/// Time limit for a sidecar process, longer than its call.
const BOUND: Duration = Duration::from_secs(60);

/// The number of comparisons: each code with and without details, with each client.
const COMPARISONS: usize = 17 * 2 * LOGICS.len();

/// The clients: a plain client of grpc-go, which does not interpret errors, and the two sidecars.
const LOGICS: [&str; 3] = ["client", "provisioner", "attacher"];

/// A fault that is injected before or during a sidecar's call.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The driver sends a malformed response from which no status can be read. The value of `--manner` selects the
    /// form.
    Manner(&'static str),
    /// The agent has ended.
    AgentDown,
    /// The hub has ended.
    HubDown,
    /// The driver is down and its socket is removed.
    SocketMissing,
    /// The driver is down, and its socket is still there.
    SocketRefuses,
    /// This process is stopped gracefully while the call is with the driver.
    EndsMeanwhile(Role),
    /// This process is killed while the call is with the driver.
    KilledMeanwhile(Role),
    /// The driver does not respond within the sidecar's timeout.
    Silent,
}

const FAULTS: [(&str, Fault); 18] = [
    ("the agent is down", Fault::AgentDown),
    ("the hub is down", Fault::HubDown),
    ("the driver's socket is missing", Fault::SocketMissing),
    ("the driver's socket refuses", Fault::SocketRefuses),
    ("the connection ends in the midst of the answer", Fault::Manner("cut")),
    ("the stream is reset in the midst of the answer", Fault::Manner("reset")),
    ("the driver is killed meanwhile", Fault::Manner("die")),
    ("the answer is larger than can be carried", Fault::Manner("oversize")),
    ("the answer is a web page", Fault::Manner("not-grpc")),
    ("the answer is an HTTP error", Fault::Manner("http-503")),
    ("the answer has no status", Fault::Manner("no-status")),
    ("the answer's status is not a number", Fault::Manner("bad-status")),
    ("the answer is garbage", Fault::Manner("garbage")),
    ("the hub shuts down meanwhile", Fault::EndsMeanwhile(Role::Hub)),
    ("the hub is killed meanwhile", Fault::KilledMeanwhile(Role::Hub)),
    ("the agent shuts down meanwhile", Fault::EndsMeanwhile(Role::Agent)),
    ("the agent is killed meanwhile", Fault::KilledMeanwhile(Role::Agent)),
    ("the driver does not answer in time", Fault::Silent),
];

impl Fault {
    /// Returns the client's timeout, and the code with which the call ends. A call that hangs ends with a wrong code.
    const fn end(self) -> (&'static str, &'static str) {
        match self {
            Self::Silent => (SHORT_CALL_TIMEOUT, "DeadlineExceeded"),
            _ => (CALL_TIMEOUT, "Unavailable"),
        }
    }
}

/// One line of a comparison.
#[derive(Deserialize)]
struct Comparison {
    logic: String,
    code: String,
    same: bool,
    said: String,
}

/// The interpretation of one response by one sidecar.
#[derive(Debug, Deserialize)]
struct Decision {
    code: String,
    r#final: bool,
    state: String,
    message: String,
}

/// Checks that each of the 17 codes passes through the relay unchanged.
pub(crate) fn compare_codes(setup: Setup<'_>) -> Result<Vec<Fact>, E2eError> {
    let mut facts = Vec::new();
    for kind in [LinkKind::Uds, LinkKind::Ws, LinkKind::Quic] {
        let part = Folders::make(setup, &format!("{kind:?}"))?;
        let driver = DriverUnderTest::classified(part.of(setup), kind)?;
        let relayed = driver.controller.as_deref().unwrap_or(&driver.node);
        let arguments = [
            "codes".as_ref(),
            "--drivername".as_ref(),
            CLASSIFIED.as_ref(),
            "--timeout".as_ref(),
            "20s".as_ref(),
            "--direct".as_ref(),
            driver.node.as_os_str(),
            "--relayed".as_ref(),
            relayed.as_os_str(),
        ];
        let lines =
            lines_of(Command::new(&setup.components.sidecars).args(arguments).stdin(Stdio::null()).output())?;
        driver.stop()?;
        let compared: Vec<Comparison> =
            lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let same = compared.iter().filter(|one| one.same).count();
        let words = format!("over {kind:?}, {same} of {COMPARISONS} answers arrive as the driver sent them");
        facts.push(Fact { words, right: same == COMPARISONS });
        facts.extend(compared.into_iter().filter(|one| !one.same).map(|one| Fact {
            words: format!("over {kind:?}, {} for the {}: {}", one.code, one.logic, one.said),
            right: false,
        }));
    }
    Ok(facts)
}

/// Checks that the sidecars do not treat a fault of the relay as the end of the operation.
pub(crate) fn inject_faults(setup: Setup<'_>) -> Result<Vec<Fact>, E2eError> {
    let mut facts = Vec::new();
    for (number, (words, fault)) in FAULTS.into_iter().enumerate() {
        let ask = |logic| {
            // Each call has a separate driver, since the fault breaks it.
            let part = Folders::make(setup, &format!("{number}-{logic}"))?;
            let driver = DriverUnderTest::classified(part.of(setup), LinkKind::Uds)?;
            Ok((logic, ask_with_fault(fault, driver, logic, part.of(setup))?))
        };
        // Concurrently, since each call may wait until a lost link is given up.
        let decisions = thread::scope(|scope| {
            let asked = LOGICS.map(|logic| scope.spawn(move || ask(logic)));
            let answers =
                asked.into_iter().map(|asked| asked.join().unwrap_or_else(|panic| resume_unwind(panic)));
            answers.collect::<Result<Vec<_>, E2eError>>()
        })?;
        let (_, expected) = fault.end();
        let wrong: Vec<String> = decisions
            .iter()
            .filter(|(_, decision)| decision.r#final || decision.code != expected)
            .map(|(logic, decision)| {
                let Decision { code, state, message, .. } = decision;
                format!("the {logic} gets {code} ({state}): {message}")
            })
            .collect();
        let codes: Vec<&str> = decisions.iter().map(|(_, decision)| decision.code.as_str()).collect();
        let message = decisions.first().map(|(_, decision)| decision.message.as_str()).unwrap_or_default();
        facts.push(match wrong.as_slice() {
            [] => {
                Fact { words: format!("{words}: {}, not final; {message:?}", codes.join(", ")), right: true }
            }
            wrong => Fact { words: format!("{words}: {}", wrong.join("; ")), right: false },
        });
    }
    Ok(facts)
}

/// Injects the fault, and makes a call; the driver is stopped afterwards.
fn ask_with_fault(
    fault: Fault,
    mut driver: DriverUnderTest,
    logic: &str,
    setup: Setup<'_>,
) -> Result<Decision, E2eError> {
    let socket = driver.controller.clone().unwrap_or_else(|| driver.node.clone());
    let manner = match fault {
        Fault::Manner(word) => word,
        Fault::EndsMeanwhile(_) | Fault::KilledMeanwhile(_) | Fault::Silent => "hold",
        _ => "code-0",
    };
    match fault {
        Fault::AgentDown => driver.kill(Role::Agent),
        Fault::HubDown => driver.kill(Role::Hub),
        Fault::SocketRefuses => driver.kill(Role::Driver),
        Fault::SocketMissing => {
            driver.kill(Role::Driver);
            std::fs::remove_file(&driver.node)
                .map_err(|cause| E2eError::File { path: driver.node.clone(), cause })?;
        }
        _ => {}
    }
    let (timeout, _) = fault.end();
    let arguments = [
        "ask".as_ref(),
        "--drivername".as_ref(),
        CLASSIFIED.as_ref(),
        "--timeout".as_ref(),
        timeout.as_ref(),
        "--logic".as_ref(),
        logic.as_ref(),
        "--manner".as_ref(),
        manner.as_ref(),
        "--endpoint".as_ref(),
        socket.as_os_str(),
    ];
    let mut client =
        Process::spawn(setup.logs, "ask", Command::new(&setup.components.sidecars).args(arguments))?;
    if let Fault::EndsMeanwhile(process) | Fault::KilledMeanwhile(process) = fault {
        let log = setup.logs.join("driver.log");
        client.ready("a call that is with the driver", || {
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains("called:"))
        })?;
        match fault {
            // The process may drain for a while and need not exit cleanly: the driver does not respond.
            Fault::EndsMeanwhile(_) => driver.terminate(process),
            _ => driver.kill(process),
        }
    }
    client.finish(BOUND)?;
    let path = setup.logs.join("ask.log");
    let log = std::fs::read_to_string(&path).map_err(|cause| E2eError::File { path: path.clone(), cause })?;
    let decision = log.lines().find_map(|line| serde_json::from_str(line).ok());
    let cause = || "the log has no line with a decision".to_owned();
    decision.ok_or_else(|| E2eError::Report { path, cause: cause(), tail: client.tail() })
}

fn lines_of(output: std::io::Result<std::process::Output>) -> Result<String, E2eError> {
    let program = "sidecars".to_owned();
    let fix = "the build of tests/e2e/go/sidecars creates it";
    let output = output.map_err(|cause| E2eError::CannotRun { program: program.clone(), cause, fix })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(E2eError::Command { command: program, status: output.status, output: text })
}
