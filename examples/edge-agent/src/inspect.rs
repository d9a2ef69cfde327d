//! The subcommands. `edge-agent volumes` and `edge-agent explain ID` show the volumes of this host.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use csi_proto::DriverName;
use prost::Message as _;
use volume_manager::advanced::message::answer::Kind;
use volume_manager::advanced::message::{Answer, Refused, VolumeReport, VolumeReports};

use super::store;
use super::terms;
use super::volumes::{SOCKET, recorded_reports};
use edge_csi_common::process::Fatal;
use edge_csi_common::state::{StateDirectory, StateError};
use edge_csi_common::state_socket;

/// Requests about the state of this host. The running agent answers; without one, the records in the state directory
/// are used.
#[derive(Debug, Clone, Subcommand)]
pub enum Inspect {
    /// Print a table of all volumes with their states and consumers
    Volumes {
        /// The agent's state directory.
        #[command(flatten)]
        state: StateOption,
    },
    /// Explain the state of a volume: why it waits, its consumers, and when it is retried
    Explain {
        /// Id of the volume; DRIVER/ID if several drivers have that id
        #[arg(value_name = "ID")]
        id: String,
        /// The agent's state directory.
        #[command(flatten)]
        state: StateOption,
    },
    /// Print the highest term of each driver's edge-csi-driver
    Terms {
        /// The agent's state directory.
        #[command(flatten)]
        state: StateOption,
    },
    /// Forget the term of a driver, so that the next edge-csi-driver is accepted. For a node at which a stolen
    /// certificate raised the term; deny that certificate first
    ForgetTerm {
        /// Name of the driver
        #[arg(value_name = "DRIVER")]
        driver: DriverName,
        /// The agent's state directory.
        #[command(flatten)]
        state: StateOption,
    },
}

/// The option that names the agent's state directory.
#[derive(Debug, Clone, clap::Args)]
pub struct StateOption {
    /// The --state-dir of the agent
    #[arg(long, value_name = "DIR", default_value = "/var/lib/edge-csi")]
    pub state_dir: PathBuf,
}

/// Executes a request and prints the answer.
pub(super) async fn run(request: &Inspect) -> Result<(), Fatal> {
    let text = match request {
        Inspect::Volumes { state } => table(&ask(&state.state_dir, None)?),
        Inspect::Explain { id, state } => explanations(id, &ask(&state.state_dir, Some(id))?)?,
        Inspect::Terms { state } => terms::ask(&state.state_dir, &terms::Request::List).await?,
        Inspect::ForgetTerm { driver, state } => {
            terms::ask(&state.state_dir, &terms::Request::Forget(driver.clone())).await?
        }
    };
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Fatal::runtime(error)),
        _ => Ok(()),
    }
}

fn ask(directory: &Path, id: Option<&str>) -> Result<VolumeReports, Fatal> {
    if id.is_some_and(|id| id.is_empty() || id.contains('\n')) {
        return Err(Fatal::Input("invalid volume id; expected one line that is not empty".to_owned()));
    }
    let path = directory.join(SOCKET);
    let question = id.map_or_else(|| "volumes".to_owned(), |id| format!("explain {id}"));
    let answer = match state_socket::ask(&path, &question) {
        Ok(answer) => Answer::decode_length_delimited(answer.as_slice()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return recorded(directory, id);
        }
        Err(error) => return Err(Fatal::Runtime(format!("{}: {error}", path.display()))),
    };
    match answer {
        Ok(Answer { answer: Some(Kind::Reports(reports)) }) => Ok(reports),
        Ok(Answer { answer: Some(Kind::Refusal(refusal)) }) => Err(Fatal::Runtime(refusal.message)),
        _ => Err(Fatal::Runtime(
            "cannot decode the agent's answer; try again with the edge-agent of the running version"
                .to_owned(),
        )),
    }
}

/// Locks a state directory that has records of `what` and that no agent uses; `in_use` is the error if one uses it.
pub(super) fn lock_records(
    directory: &Path,
    what: &str,
    in_use: impl FnOnce() -> String,
) -> Result<StateDirectory, Fatal> {
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(Fatal::Input(format!("--state-dir: no directory {shown}")));
    }
    let lock = match StateDirectory::open(directory) {
        Ok(lock) => lock,
        Err(StateError::InUse { .. }) => return Err(Fatal::Runtime(in_use())),
        Err(error) => return Err(Fatal::runtime(error)),
    };
    if store::is_missing(directory) {
        return Err(Fatal::Input(format!("--state-dir: {shown} has no records of {what}")));
    }
    Ok(lock)
}

/// Reads the records of a state directory that no agent uses.
fn recorded(directory: &Path, id: Option<&str>) -> Result<VolumeReports, Fatal> {
    let shown = directory.display();
    let in_use = || format!("the agent that uses {shown} manages no volumes; start it with --staging-dir");
    let _lock = lock_records(directory, "volumes", in_use)?;
    let reports = recorded_reports(directory, id)?;
    // The answer is printed even if stderr is closed.
    let _ = writeln!(io::stderr(), "edge-agent: no agent uses {shown} now; showing the recorded state");
    Ok(reports)
}

fn table(reports: &VolumeReports) -> String {
    let mut rows = vec![["VOLUME".to_owned(), "STATE".to_owned(), "CONSUMERS".to_owned()]];
    rows.extend(reports.volumes.iter().map(|volume| {
        let state = if volume.state.is_empty() { "UNREADABLE" } else { &volume.state };
        [format!("{}/{}", volume.driver, volume.volume_id), state.to_owned(), consumers(volume)]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let mut text: String = rows
        .iter()
        .map(|[volume, state, consumers]| line(&format!("{volume:first$}  {state:second$}  {consumers}")))
        .collect();
    text.extend(reports.refused.iter().map(refused_line));
    let unreadable = reports.quarantined.iter();
    text.extend(unreadable.map(|one| line(&format!("unreadable: record {}: {}", one.record, one.reason))));
    text
}

/// Formats a line of the answer. Control characters and backslashes are escaped as in Rust, so that no id can
/// forge a line.
fn line(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if c.is_control() || c == '\\' {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    line
}

fn consumers(volume: &VolumeReport) -> String {
    if volume.consumers.is_empty() {
        return "-".to_owned();
    }
    let all = volume.consumers.iter().map(|consumer| {
        let mark = match (consumer.wanted, consumer.published) {
            (true, true) => "",
            (true, false) => " (not yet)",
            (false, _) => " (being removed)",
        };
        format!("{}{mark}", consumer.id)
    });
    all.collect::<Vec<_>>().join(", ")
}

fn refused_line(one: &Refused) -> String {
    line(&format!("refused: {}/{} for {}: {}", one.driver, one.volume_id, one.consumer, one.reason))
}

fn explanations(id: &str, reports: &VolumeReports) -> Result<String, Fatal> {
    let mut names: Vec<String> =
        reports.volumes.iter().map(|one| format!("{}/{}", one.driver, one.volume_id)).collect();
    names.extend(reports.refused.iter().map(|one| format!("{}/{}", one.driver, one.volume_id)));
    names.sort();
    names.dedup();
    match &names[..] {
        [] => {
            let unreadable = match reports.quarantined.len() {
                0 => String::new(),
                count => format!(" ({count} records cannot be read; edge-agent volumes shows why)"),
            };
            Err(Fatal::Input(format!(
                "this node has no volume {id}{unreadable}; edge-agent volumes lists all volumes"
            )))
        }
        [_] => {
            let known = reports.volumes.iter().map(|volume| line(&volume.explanation));
            Ok(known.chain(reports.refused.iter().map(refused_line)).collect())
        }
        several => {
            let several = several.join(", ");
            Err(Fatal::Input(format!("several volumes have the id {id}: {several}; give one of these")))
        }
    }
}

#[cfg(test)]
mod tests {
    use volume_manager::advanced::message::ConsumerReport;

    use super::super::CommandLine;
    use super::*;
    use edge_csi_common::process;

    fn volume(driver: &str, id: &str) -> VolumeReport {
        let consumer = |id: &str, wanted, published| ConsumerReport {
            id: id.into(),
            target_path: "/pods/1".into(),
            wanted,
            published,
        };
        VolumeReport {
            driver: driver.into(),
            volume_id: id.into(),
            state: "PUBLISHED".into(),
            explanation: format!("{driver}/{id} is PUBLISHED for 1s, as desired."),
            consumers: vec![
                consumer("a", true, true),
                consumer("b", false, true),
                consumer("c", true, false),
            ],
        }
    }

    #[test]
    fn table_has_a_line_for_each_volume() {
        let volumes =
            vec![volume("d.example", "v1"), VolumeReport { consumers: vec![], ..volume("e", "v2") }];
        let text = table(&VolumeReports { volumes, ..Default::default() });
        let expected = "VOLUME        STATE      CONSUMERS\n\
                        d.example/v1  PUBLISHED  a, b (being removed), c (not yet)\n\
                        e/v2          PUBLISHED  -\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_id_cannot_forge_a_line() {
        let volumes = vec![VolumeReport { consumers: vec![], ..volume("d", "v1\nrefused: d/v2") }];
        let text = table(&VolumeReports { volumes, ..Default::default() });
        assert!(text.lines().count() == 2 && text.contains("d/v1\\nrefused"), "{text}");
    }

    #[test]
    fn unknown_and_ambiguous_ids_are_errors() {
        let reports = |volumes| VolumeReports { volumes, ..Default::default() };
        let one = explanations("v1", &reports(vec![volume("d.example", "v1")])).unwrap();
        assert_eq!(one, "d.example/v1 is PUBLISHED for 1s, as desired.\n");
        let none = explanations("v1", &reports(vec![])).unwrap_err();
        assert!(none.to_string().contains("this node has no volume v1") && none.exit_code() == 2, "{none}");
        let two = explanations("v1", &reports(vec![volume("d", "v1"), volume("e", "v1")])).unwrap_err();
        assert!(two.to_string().contains("d/v1, e/v1; give one of these"), "{two}");
    }

    #[test]
    fn parses_commands_and_options_separately() {
        let read = |line: &str| process::parse::<CommandLine>(line.split(' ')).map(|(line, _)| line);
        assert!(read("edge-agent volumes").unwrap().command.is_some());
        assert!(read("edge-agent explain v1 --state-dir /x -v").unwrap().command.is_some());
        assert!(read("edge-agent terms").unwrap().command.is_some());
        assert!(read("edge-agent forget-term a.example --state-dir /x").unwrap().command.is_some());
        let agent = read("edge-agent --nodeid edge-1 --hub unix:///h --plugins-registry /r").unwrap();
        assert!(agent.command.is_none() && agent.options.is_some());
        for wrong in [
            "explain",
            "volumes --nodeid edge-1",
            "--nodeid edge-1",
            "forget v1",
            "forget-term",
            "forget-term /",
        ] {
            assert!(read(&format!("edge-agent {wrong}")).is_err(), "{wrong}");
        }
    }
}
