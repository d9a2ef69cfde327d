//! What the sidecars themselves make of our answers: the classifiers of external-provisioner and external-attacher, run
//! on every code that a driver may give and on every trouble of our own.

use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use serde::Deserialize;

use super::error::RealError;
use super::setup::{Folders, Setup};
use super::stack::{CLASSIFIED, Stack};
use super::table::Fact;

/// Time for one call of a sidecar: longer than a link that was lost is waited for, so that all our own troubles are told in it.
const PATIENCE: &str = "45s";

/// Time for a call that is to end by it.
const IMPATIENCE: &str = "3s";

/// Time for a sidecar as a process, which is more than its call.
const BOUND: Duration = Duration::from_secs(60);

/// Codes, each with details and without, and with each of those who ask.
const COMPARISONS: usize = 17 * 2 * LOGICS.len();

/// Those who ask: a plain client of grpc-go, which has no opinion of an error, and the two sidecars.
const LOGICS: [&str; 3] = ["client", "provisioner", "attacher"];

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// The driver answers so that no status can be read from it, by a word that it knows.
    Manner(&'static str),
    /// The agent has ended.
    AgentGone,
    /// The hub has ended.
    HubGone,
    /// The driver and its socket are gone.
    SocketMissing,
    /// The driver is gone, and its socket is still there.
    SocketRefuses,
    /// This process ends in good order while the call is with the driver.
    EndsMeanwhile(&'static str),
    /// This process is killed while the call is with the driver.
    KilledMeanwhile(&'static str),
    /// The driver does not answer as long as the sidecar waits.
    Silent,
}

const TROUBLES: [(&str, Trouble); 18] = [
    ("the agent is down", Trouble::AgentGone),
    ("the hub is down", Trouble::HubGone),
    ("the driver's socket is missing", Trouble::SocketMissing),
    ("the driver's socket refuses", Trouble::SocketRefuses),
    ("the connection ends in the midst of the answer", Trouble::Manner("cut")),
    ("the stream is reset in the midst of the answer", Trouble::Manner("reset")),
    ("the driver is killed meanwhile", Trouble::Manner("die")),
    ("the answer is larger than can be carried", Trouble::Manner("oversize")),
    ("the answer is a web page", Trouble::Manner("not-grpc")),
    ("the answer is an HTTP error", Trouble::Manner("http-503")),
    ("the answer has no status", Trouble::Manner("no-status")),
    ("the answer's status is no number", Trouble::Manner("bad-status")),
    ("the answer is garbage", Trouble::Manner("garbage")),
    ("the hub shuts down meanwhile", Trouble::EndsMeanwhile("hub")),
    ("the hub is killed meanwhile", Trouble::KilledMeanwhile("hub")),
    ("the agent shuts down meanwhile", Trouble::EndsMeanwhile("agent")),
    ("the agent is killed meanwhile", Trouble::KilledMeanwhile("agent")),
    ("the driver does not answer in time", Trouble::Silent),
];

impl Trouble {
    /// How long who asks waits, and with which code that ends. A call that hangs has the wrong one.
    const fn end(self) -> (&'static str, &'static str) {
        match self {
            Self::Silent => (IMPATIENCE, "DeadlineExceeded"),
            _ => (PATIENCE, "Unavailable"),
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

/// What one sidecar makes of one answer.
#[derive(Debug, Deserialize)]
struct Verdict {
    code: String,
    r#final: bool,
    state: String,
    message: String,
}

/// Anchors of the relay, (f) 2: each of the 17 codes is seen through the relay as the driver gives it.
pub(crate) fn compare_codes(setup: Setup<'_>) -> Result<Vec<Fact>, RealError> {
    let mut facts = Vec::new();
    for kind in [LinkKind::Uds, LinkKind::Ws, LinkKind::Quic] {
        let part = Folders::make(setup, &format!("{kind:?}"))?;
        let stack = Stack::classified(part.of(setup), kind)?;
        let relayed = stack.controller.as_deref().unwrap_or(&stack.node);
        let arguments = [
            "codes".as_ref(),
            "--drivername".as_ref(),
            CLASSIFIED.as_ref(),
            "--timeout".as_ref(),
            "20s".as_ref(),
            "--direct".as_ref(),
            stack.node.as_os_str(),
            "--relayed".as_ref(),
            relayed.as_os_str(),
        ];
        let lines =
            lines_of(Command::new(&setup.components.sidecars).args(arguments).stdin(Stdio::null()).output())?;
        stack.stop()?;
        let compared: Vec<Comparison> =
            lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let same = compared.iter().filter(|one| one.same).count();
        let words =
            format!("over {kind:?}, {same} of {COMPARISONS} answers are seen as the driver gave them");
        facts.push(Fact { words, right: same == COMPARISONS });
        facts.extend(compared.into_iter().filter(|one| !one.same).map(|one| Fact {
            words: format!("over {kind:?}, {} for the {}: {}", one.code, one.logic, one.said),
            right: false,
        }));
    }
    Ok(facts)
}

/// Anchors of the relay, (f) 3: none of our own troubles is taken for the end of the work.
pub(crate) fn make_trouble(setup: Setup<'_>) -> Result<Vec<Fact>, RealError> {
    let mut facts = Vec::new();
    for (number, (words, trouble)) in TROUBLES.into_iter().enumerate() {
        let ask = |logic| {
            // Each has a stack of its own, since it is broken afterwards.
            let part = Folders::make(setup, &format!("{number}-{logic}"))?;
            let stack = Stack::classified(part.of(setup), LinkKind::Uds)?;
            Ok((logic, ask_in(trouble, stack, logic, part.of(setup))?))
        };
        // Side by side, since each may wait until a lost link is given up.
        let verdicts = thread::scope(|scope| {
            let asked = LOGICS.map(|logic| scope.spawn(move || ask(logic)));
            let answers =
                asked.into_iter().map(|asked| asked.join().unwrap_or_else(|panic| resume_unwind(panic)));
            answers.collect::<Result<Vec<_>, RealError>>()
        })?;
        let (_, expected) = trouble.end();
        let wrong: Vec<String> = verdicts
            .iter()
            .filter(|(_, verdict)| verdict.r#final || verdict.code != expected)
            .map(|(logic, verdict)| {
                let Verdict { code, state, message, .. } = verdict;
                format!("the {logic} gets {code} ({state}): {message}")
            })
            .collect();
        let codes: Vec<&str> = verdicts.iter().map(|(_, verdict)| verdict.code.as_str()).collect();
        let told = verdicts.first().map(|(_, verdict)| verdict.message.as_str()).unwrap_or_default();
        facts.push(match wrong.as_slice() {
            [] => Fact { words: format!("{words}: {}, not final; {told:?}", codes.join(", ")), right: true },
            wrong => Fact { words: format!("{words}: {}", wrong.join("; ")), right: false },
        });
    }
    Ok(facts)
}

/// Makes the trouble, and asks; the stack is gone afterwards.
fn ask_in(trouble: Trouble, mut stack: Stack, logic: &str, setup: Setup<'_>) -> Result<Verdict, RealError> {
    let socket = stack.controller.clone().unwrap_or_else(|| stack.node.clone());
    let manner = match trouble {
        Trouble::Manner(word) => word,
        Trouble::EndsMeanwhile(_) | Trouble::KilledMeanwhile(_) | Trouble::Silent => "hold",
        _ => "code-0",
    };
    match trouble {
        Trouble::AgentGone => stack.kill("agent"),
        Trouble::HubGone => stack.kill("hub"),
        Trouble::SocketRefuses => stack.kill("driver"),
        Trouble::SocketMissing => {
            stack.kill("driver");
            std::fs::remove_file(&stack.node)
                .map_err(|cause| RealError::File { path: stack.node.clone(), cause })?;
        }
        _ => {}
    }
    let (patience, _) = trouble.end();
    let arguments = [
        "ask".as_ref(),
        "--drivername".as_ref(),
        CLASSIFIED.as_ref(),
        "--timeout".as_ref(),
        patience.as_ref(),
        "--logic".as_ref(),
        logic.as_ref(),
        "--manner".as_ref(),
        manner.as_ref(),
        "--endpoint".as_ref(),
        socket.as_os_str(),
    ];
    let mut asker =
        Process::spawn(setup.logs, "ask", Command::new(&setup.components.sidecars).args(arguments))?;
    if let Trouble::EndsMeanwhile(process) | Trouble::KilledMeanwhile(process) = trouble {
        let driver = setup.logs.join("driver.log");
        asker.ready("a call that is with the driver", || {
            std::fs::read_to_string(&driver).is_ok_and(|log| log.contains("called:"))
        })?;
        match trouble {
            // It may take its time, and need not end well: the driver does not answer.
            Trouble::EndsMeanwhile(_) => stack.terminate(process),
            _ => stack.kill(process),
        }
    }
    asker.finish(BOUND)?;
    let path = setup.logs.join("ask.log");
    let log =
        std::fs::read_to_string(&path).map_err(|cause| RealError::File { path: path.clone(), cause })?;
    let verdict = log.lines().find_map(|line| serde_json::from_str(line).ok());
    let cause = || "no verdict in it".to_owned();
    verdict.ok_or_else(|| RealError::Report { path, cause: cause(), tail: asker.tail() })
}

fn lines_of(output: std::io::Result<std::process::Output>) -> Result<String, RealError> {
    let program = "sidecars".to_owned();
    let fix = "the build should have made it";
    let output = output.map_err(|cause| RealError::Missing { program: program.clone(), cause, fix })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(RealError::Command { command: program, status: output.status, output: text })
}
