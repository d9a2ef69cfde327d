//! Calls over the messages of KubeEdge: `own_kubeedge_cloud` and `own_kubeedge_node` of `examples/embed`, with a real driver.

use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::csi::{controller, create_volume, delete_volume, ready, within};
use edge_csi_tests::{port, wait};
use serde_json::{Value, json};

use super::away::RECONNECT;
use super::cloudcore::{REST_TIMEOUT, ROUTER};
use super::cluster::{KubeEdge, NODE};
use super::idle::passed;
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings, text};
use crate::kubernetes::edge::DRIVERS;
use crate::kubernetes::part::{Part, Ready};
use crate::on_runtime;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// The name of the rule, and the end of its path.
const NAME: &str = "csi";

/// The driver's log message for a created volume.
const MADE: &str = "volume created";

/// The calls of the measurement.
const CALLS: u32 = 120;

/// The bytes of a large request.
const LARGE: usize = 3 << 20;

/// A part of the secret, as text, in base64 and as the bytes of Go.
const SECRET: [&str; 3] = ["xxxxxxxx", "eHh4eHh4", "120 120 120 120"];

/// Time for which a call runs; serviceBus waits for 10 s.
const LONG: Duration = Duration::from_secs(12);

/// Time for a call to a node that does not answer: the router makes three attempts, with pauses of 1 s.
const LOST: Duration = Duration::from_secs(3 * REST_TIMEOUT + 30);

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let (api, port) = (kubeedge.cluster.api, port::free());
    let rule = rule(port);
    rule.iter().try_for_each(|(collection, object)| api.create(collection, object))?;
    let outcome = calls(setup, kubeedge, findings, port);
    for (collection, object) in rule.iter().rev() {
        api.delete(&format!("{collection}/{}", text(&object["metadata"]["name"])))?;
    }
    outcome
}

/// Returns the endpoints and the rule that pass the POSTs for a node to a port of it.
fn rule(port: u16) -> [(String, Value); 3] {
    let object = |kind: &str, name: &str, spec: Value| {
        let collection = format!("/apis/rules.kubeedge.io/v1/namespaces/default/{}s", kind.to_lowercase());
        let metadata = json!({"name": name, "namespace": "default"});
        let object =
            json!({"apiVersion": "rules.kubeedge.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
        (collection, object)
    };
    let port = json!({"service_port": port.to_string()});
    let path = json!({"path": "/csi"});
    [
        object("RuleEndpoint", "csi-cloud", json!({"ruleEndpointType": "rest", "properties": {}})),
        object("RuleEndpoint", "csi-node", json!({"ruleEndpointType": "servicebus", "properties": port})),
        object(
            "Rule",
            NAME,
            json!({"source": "csi-cloud", "sourceResource": path, "target": "csi-node", "targetResource": path}),
        ),
    ]
}

/// Creates a volume, with a secret of this size. Returns its id.
fn create(socket: &Path, name: &str, secret: usize) -> Result<String, String> {
    let mut request = create_volume(name);
    if secret > 0 {
        request.secrets.insert("large".to_owned(), "x".repeat(secret));
    }
    let answer = on_runtime(async { Ok(controller(socket).create_volume(within(LOST, request)).await) });
    let answer = answer.map_err(|error| error.to_string())?;
    let volume = answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    Ok(volume.into_inner().volume.unwrap_or_default().volume_id)
}

/// Deletes a volume.
fn delete(socket: &Path, id: &str) -> Result<(), String> {
    let answer =
        on_runtime(async { Ok(controller(socket).delete_volume(within(LOST, delete_volume(id))).await) });
    let answer = answer.map_err(|error| error.to_string())?;
    answer.map(drop).map_err(|status| format!("{:?}: {}", status.code(), status.message()))
}

fn calls(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
    port: u16,
) -> Result<(), E2eError> {
    let router = format!("127.0.0.1:{ROUTER}");
    // The router listens once a rule exists.
    let listens = wait::poll(BOUND, || TcpStream::connect(&router).ok());
    findings.note(listens.is_some(), format!("cloudcore's router listens on {router}"));
    let start = |name: &str, arguments: &[&str], ready| {
        let arguments = arguments.iter().fold(Arguments::new(), Arguments::flag);
        let program = setup.components.all_in_one.with_file_name(name);
        Part::start(setup, name.to_owned(), &program, arguments, ready)
    };
    let driver = kubeedge.cluster.edge.node(NODE).map(|node| node.driver_socket(DRIVER)).unwrap_or_default();
    let socket = setup.folder("messages")?.join("csi.sock");
    let mut node = start("own_kubeedge_node", &[&port.to_string(), DRIVER, &unix(&driver)], Ready::AtOnce)?;
    node.ready_within(BOUND, "its port", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    let near = [&router, &format!("/default/{NAME}"), NODE, DRIVER, &unix(&socket)];
    let _cloud = start("own_kubeedge_cloud", &near, Ready::Socket(socket.clone()))?;
    on_runtime(async {
        ready(&socket).await;
        Ok(())
    })?;
    usual_calls(setup, kubeedge, findings, &socket);
    long_call(setup, kubeedge, findings, &socket);

    node.kill();
    let begun = Instant::now();
    let found = create(&socket, "lost", 0).err().unwrap_or_default();
    let is_right = found.starts_with("Unavailable") && found.contains("wait to get response time out");
    findings.note(
        is_right,
        format!("without the node's program a call ends after {:.1?}: {found}", begun.elapsed()),
    );
    node.restart(setup)?;

    kubeedge.edgecore.kill();
    let begun = Instant::now();
    let offline = format!("Unavailable: node {NODE} is offline");
    let found =
        wait::poll(BOUND, || create(&socket, "lost", 0).err().filter(|found| found.contains(&offline)));
    findings.note(
        found.is_some(),
        format!("without edgecore, {:.1?} after its end: {}", begun.elapsed(), found.unwrap_or_default()),
    );
    kubeedge.edgecore.restart(setup)?;
    let begun = Instant::now();
    let created = wait::poll(RECONNECT, || create(&socket, "lost", 0).ok());
    findings.note(
        created.is_some(),
        format!("a call passes {:.1?} after edgecore is there again", begun.elapsed()),
    );
    let deleted = delete(&socket, &created.unwrap_or_default());
    findings.note(deleted.is_ok(), format!("and its volume is deleted: {deleted:?}"));
    Ok(())
}

/// Creates and deletes a volume, and measures calls.
fn usual_calls(setup: &Setup<'_>, kubeedge: &KubeEdge, findings: &mut Findings, socket: &Path) {
    let volumes = || kubeedge.cluster.edge.node(NODE).map_or(0, |node| node.volumes(DRIVER));
    let (before, begun) = (volumes(), Instant::now());
    let created = create(socket, "usual", 0);
    findings.note(
        created.is_ok() && volumes() == before + 1,
        format!("the driver of the node makes a volume after {:.1?}: {created:?}", begun.elapsed()),
    );
    let (bytes, begun) = (passed(), Instant::now());
    let same = (0..CALLS).filter(|_| create(socket, "usual", 0) == created).count();
    findings.note(
        same == CALLS as usize,
        format!("{same} of {CALLS} calls after each other get the same volume, in {:.1?}", begun.elapsed()),
    );
    let bytes = passed().saturating_sub(bytes) / u64::from(CALLS);
    findings.note(bytes > 0, format!("IP bytes of KubeEdge's connection for each of them: {bytes}"));
    let begun = Instant::now();
    let large = create(socket, "usual", LARGE);
    findings.note(
        large == created,
        format!("so does one with a secret of {LARGE} bytes, after {:.1?}", begun.elapsed()),
    );
    let logged = |log: &str| -> usize { SECRET.iter().map(|text| setup.logged(log, text)).sum() };
    let lines = logged("cloudcore") + logged(&format!("edgecore-{NODE}"));
    findings.note(lines == 0, format!("parts of the secret in the logs of cloudcore and edgecore: {lines}"));
    let refused = delete(socket, "").err().unwrap_or_default();
    findings.note(
        refused.starts_with("InvalidArgument"),
        format!("an error of the driver arrives unchanged: {refused}"),
    );
    let deleted = delete(socket, &created.unwrap_or_default());
    findings.note(deleted.is_ok() && volumes() == before, format!("the volume is deleted: {deleted:?}"));
}

/// Makes a call that runs longer than serviceBus waits for an answer.
fn long_call(setup: &Setup<'_>, kubeedge: &KubeEdge, findings: &mut Findings, socket: &Path) {
    let made = || setup.logged(&format!("driver-{NODE}-{DRIVER}"), MADE);
    let Some(driver) = kubeedge.cluster.edge.node(NODE).and_then(|node| node.driver(DRIVER)) else {
        return findings.note(false, format!("{NODE} has a driver {DRIVER}"));
    };
    let (before, begun, path) = (made(), Instant::now(), socket.to_owned());
    driver.freeze();
    let call = thread::spawn(move || create(&path, "long", 0));
    let early = wait::poll(LONG, || call.is_finished().then_some(()));
    driver.thaw();
    let created = call.join().unwrap_or_else(|_| Err("the thread of the call has ended".to_owned()));
    let count = made() - before;
    findings.note(
        early.is_none() && created.is_ok() && count == 1,
        format!("a call of {:.1?} ends with {created:?}; volumes made: {count}", begun.elapsed()),
    );
    let deleted = delete(socket, &created.unwrap_or_default());
    findings.note(deleted.is_ok(), format!("and its volume is deleted: {deleted:?}"));
}
