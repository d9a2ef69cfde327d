//! The sidecars as the processes that they are, while everything behind the socket is off: they come up, stay up, and go
//! to work when it comes.

use std::path::Path;
use std::time::Duration;

use super::certificates::Certificates;
use super::component::Components;
use super::error::RealError;
use super::process::Process;
use super::stack::{CLASSIFIED, Stack};
use super::table::Fact;
use super::wait;

/// A sidecar asks once a second whether the driver is ready.
const PROBES: usize = 20;

/// Time for that, and for what should happen at once.
const BOUND: Duration = Duration::from_secs(90);

/// What a sidecar logs for each Probe that says that the driver is not ready.
const NOT_READY: &str = "CSI driver is not ready";

/// What edge-csi-driver logs when it can no longer reach the driver.
const TOLD: &str = "sidecars are told that it is not ready";

/// The sidecars: their names, and what each logs when it has all that it needs of the driver and looks for work.
const SIDECARS: [(&str, &str); 2] =
    [("csi-provisioner", "Started provisioner controller"), ("csi-attacher", "Starting CSI attacher")];

/// Anchors of the relay, (f) 15: with the edge off the sidecars start and stay, and they need no start to go on.
pub(crate) fn run(
    components: &Components,
    certificates: &Certificates,
    scratch: &Path,
    logs: &Path,
) -> Result<Vec<Fact>, RealError> {
    let port = wait::free_port().map_err(|cause| RealError::File { path: "127.0.0.1:0".into(), cause })?;
    let listen = format!("127.0.0.1:{port}");
    let mut api = Process::start("api", &components.sidecars, ["api", "--listen", &listen], logs)?;
    api.ready("its port", || std::net::TcpStream::connect(&listen).is_ok())?;
    let kubeconfig = scratch.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://{listen}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).map_err(|cause| RealError::File { path: kubeconfig.clone(), cause })?;

    let mut stack = Stack::offline(components, certificates, scratch, logs)?;
    let mut facts = Vec::new();
    let mut sidecars = start(components, &stack, &kubeconfig, logs)?;
    waits(&mut sidecars, logs, "never having seen the edge", &mut facts);
    stack.come_online(components, certificates, scratch, logs)?;
    works(&mut sidecars, logs, "when the edge comes", &mut facts);

    for process in ["hub", "agent", "driver"] {
        stack.kill(process);
    }
    answers(components, &stack, logs, &mut facts)?;
    for (sidecar, _) in &mut sidecars {
        let words = format!("{} stays when the edge goes", sidecar.name());
        facts.push(Fact { words, right: sidecar.runs() });
    }
    drop(sidecars);
    // Who starts before edge-csi-driver has asked once more is still told that the driver is ready.
    let noticed = wait::until(BOUND, || (log(logs, "endpoint").matches(TOLD).count() > 1).then_some(()));
    facts.push(Fact { words: "edge-csi-driver notices it".to_owned(), right: noticed.is_some() });
    let mut sidecars = start(components, &stack, &kubeconfig, logs)?;
    waits(&mut sidecars, logs, "started while the edge is off", &mut facts);
    std::fs::remove_file(&stack.node).map_err(|cause| RealError::File { path: stack.node.clone(), cause })?;
    stack.come_online(components, certificates, scratch, logs)?;
    works(&mut sidecars, logs, "when the edge is back", &mut facts);
    drop(sidecars);
    stack.stop()?;
    Ok(facts)
}

fn start(
    components: &Components,
    stack: &Stack,
    kubeconfig: &Path,
    logs: &Path,
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
        Process::start(name, &components.sidecar(name), arguments, logs).map(|process| (process, works))
    };
    SIDECARS.into_iter().map(start).collect()
}

/// They ask whether the driver is ready, and go on asking.
fn waits(sidecars: &mut [(Process, &'static str)], logs: &Path, when: &str, facts: &mut Vec<Fact>) {
    for (sidecar, _) in sidecars {
        let name = sidecar.name();
        let waited = wait::until(BOUND, || {
            let asked = log(logs, name).matches(NOT_READY).count();
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
        let name = sidecar.name();
        let working =
            wait::until(BOUND, || (log(logs, name).contains(*works) || !sidecar.runs()).then_some(()));
        let right = working.is_some() && sidecar.runs();
        let words = format!("{name} {} to work {when}", if right { "goes" } else { "does not go" });
        facts.push(Fact { words, right });
    }
}

/// A call while the edge is off fails by itself, at once.
fn answers(
    components: &Components,
    stack: &Stack,
    logs: &Path,
    facts: &mut Vec<Fact>,
) -> Result<(), RealError> {
    let socket = stack.controller.as_deref().unwrap_or(&stack.node);
    let arguments = [
        "ask".as_ref(),
        "--drivername".as_ref(),
        CLASSIFIED.as_ref(),
        "--logic".as_ref(),
        "provisioner".as_ref(),
        "--endpoint".as_ref(),
        socket.as_os_str(),
    ];
    Process::start("ask", &components.sidecars, arguments, logs)?.finish(BOUND)?;
    let said = log(logs, "ask");
    let verdict = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let right = verdict.contains(r#""code":"Unavailable","final":false"#);
    facts.push(Fact { words: format!("a claim while the edge is off: {verdict}"), right });
    Ok(())
}

fn log(logs: &Path, name: &str) -> String {
    std::fs::read_to_string(logs.join(name).with_extension("log")).unwrap_or_default()
}
