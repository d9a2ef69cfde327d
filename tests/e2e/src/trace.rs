//! One random trace of operations on a node's volumes, run on several drivers: after each step the state must match the model,
//! and be the same with every driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::process::Process;
use edge_csi_tests::volumes::rounds;

use super::component::Components;
use super::driver::MOCK;
use super::error::E2eError;
use super::setup::Setup;
use super::table::Fact;

/// Time limit: a step takes 30 ms, and up to 20 s before it counts as lost.
const BOUND: Duration = Duration::from_secs(300);

/// The number of steps of a trace.
const STEPS: u64 = 150;

/// The variable with one additional driver for the trace: its name, and the command that starts it, with the placeholders
/// {socket} and {state} for its paths, such as `some.csi.driver=/usr/bin/driver --endpoint unix://{socket} --data {state}`.
const OTHER_DRIVER: &str = "EDGE_CSI_TRACE_DRIVER";

/// The variable with that driver's permitted deviations from hostpath-driver, separated by commas.
const DEVIATIONS: &str = "EDGE_CSI_TRACE_DEVIATIONS";

/// A driver under test.
struct Subject {
    name: String,
    command: Vec<String>,
    deviations: Vec<String>,
}

/// Runs the trace on each driver.
pub(crate) fn run(setup: Setup<'_>) -> Result<Vec<Fact>, E2eError> {
    let seed = rounds::seed();
    let again = format!(
        "{}={seed} cargo test -p edge-csi-e2e --test drivers -- --ignored volumes-trace",
        rounds::SEED
    );
    let mut facts = vec![Fact { words: format!("seed {seed}; to repeat: {again}"), right: true }];
    let mut first: Option<Vec<String>> = None;
    for subject in subjects(setup.components) {
        let lines = match run_on(&subject, seed, setup) {
            Ok(lines) => lines,
            Err(error) => {
                facts.push(Fact { words: format!("{}: {error}", subject.name), right: false });
                continue;
            }
        };
        let (name, steps) = (&subject.name, lines.len());
        let mut words = format!("{name}: after each of {steps} steps the state was the model's");
        let mut right = true;
        if let Some(first) = &first {
            right = *first == lines;
            words.push_str(if right {
                ", and the same as with the first driver"
            } else {
                ", but not the same as with the first driver"
            });
        }
        if !subject.deviations.is_empty() {
            words.push_str(&format!("; it may differ by {}", subject.deviations.join(", ")));
        }
        facts.push(Fact { words, right });
        first.get_or_insert(lines);
    }
    Ok(facts)
}

fn subjects(components: &Components) -> Vec<Subject> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let start = |program: &Path, arguments: &[&str]| {
        let mut command = vec![program.display().to_string()];
        command.extend(words(arguments));
        command
    };
    let hostpath =
        ["--drivername", DRIVER, "--endpoint", "unix://{socket}", "--nodeid", NODE, "--state-dir", "{state}"];
    let mut subjects = vec![
        Subject {
            name: DRIVER.to_owned(),
            command: start(&components.hostpath_driver, &hostpath),
            deviations: Vec::new(),
        },
        Subject {
            name: MOCK.to_owned(),
            command: start(&components.mock_driver, &["--endpoint", "{socket}", "--drivername", MOCK]),
            deviations: words(&[
                "stages-without-mount",
                "mounts-nothing",
                "forgets-at-restart",
                "refuses-read-only-twice",
            ]),
        },
    ];
    subjects.extend(std::env::var(OTHER_DRIVER).ok().map(|given| {
        let (name, command) = given.split_once('=').unwrap_or((&given, ""));
        Subject {
            name: name.to_owned(),
            command: command.split_whitespace().map(ToOwned::to_owned).collect(),
            deviations: std::env::var(DEVIATIONS)
                .map(|words| words.split(',').map(ToOwned::to_owned).collect())
                .unwrap_or_default(),
        }
    }));
    subjects
}

/// Runs the trace on one driver in separate namespaces, and returns a line for each step.
fn run_on(subject: &Subject, seed: u64, setup: Setup<'_>) -> Result<Vec<String>, E2eError> {
    let file = |path: &Path, cause| E2eError::File { path: path.to_owned(), cause };
    let directory: PathBuf = setup.scratch.join("t");
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(|cause| file(&directory, cause))?;
    }
    fs::create_dir_all(&directory).map_err(|cause| file(&directory, cause))?;
    let own = setup.logs.join(&subject.name);
    fs::create_dir_all(&own).map_err(|cause| file(&own, cause))?;
    let record = own.join("record");
    let mut arguments: Vec<std::ffi::OsString> =
        ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
            .map(Into::into)
            .into();
    arguments.push(setup.components.volume_trace.clone().into());
    let mut pair = |option: &str, value: &std::ffi::OsStr| {
        arguments.extend([option.into(), value.to_owned()]);
    };
    pair("--directory", directory.as_os_str());
    pair("--program", setup.components.volume_node.as_os_str());
    pair("--seed", seed.to_string().as_ref());
    pair("--steps", STEPS.to_string().as_ref());
    pair("--record", record.as_os_str());
    pair("--drivername", subject.name.as_ref());
    subject.deviations.iter().for_each(|word| pair("--deviation", word.as_ref()));
    arguments.push("--".into());
    arguments.extend(subject.command.iter().map(Into::into));
    let mut trace = Process::spawn(&own, "trace", Command::new("unshare").args(arguments))?;
    trace.finish(BOUND)?;
    let lines = fs::read_to_string(&record).map_err(|_| E2eError::Trace { tail: trace.reason() })?;
    Ok(lines.lines().map(ToOwned::to_owned).collect())
}
