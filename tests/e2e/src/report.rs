//! The results of a run's cases, and a search of the logs for text that must not be there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::E2eError;
use super::sanity::SECRET;

/// The state of a finished case, in ginkgo's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Passed,
    Failed,
    Skipped,
    Pending,
    Panicked,
    Interrupted,
    Aborted,
    Timedout,
    #[serde(other)]
    Unknown,
}

/// The results by case.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(BTreeMap<String, Case>);

#[derive(Debug, Clone)]
struct Case {
    state: State,
    /// The suite's message for a case that did not pass.
    said: Option<String>,
}

impl Outcomes {
    pub(crate) fn count(&self, state: State) -> usize {
        self.0.values().filter(|case| case.state == state).count()
    }

    /// Returns the number of cases that ran.
    pub(crate) fn run(&self) -> usize {
        self.0.len() - self.count(State::Skipped) - self.count(State::Pending)
    }

    /// Returns the number of cases that ran and did not pass.
    pub(crate) fn failed(&self) -> usize {
        self.run() - self.count(State::Passed)
    }

    /// Merges the results of another, partial run. A failure in either run counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (name, case) in other.0.iter().filter(|(_, case)| case.state != State::Skipped) {
            if case.state != State::Passed || !self.0.contains_key(name) {
                self.0.insert(name.clone(), case.clone());
            }
        }
    }

    /// Returns a line for each case whose result differs from `direct`.
    pub(crate) fn differences(&self, direct: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(direct.0.keys()).collect();
        let state = |outcomes: &Self, name| outcomes.0.get(name).map(|case| case.state);
        names
            .into_iter()
            .filter(|name| state(self, *name) != state(direct, *name))
            .map(|name| {
                let word = |state: Option<State>| match state {
                    Some(state) => format!("{state:?}").to_lowercase(),
                    None => "not run".to_owned(),
                };
                let said = self.0.get(name).and_then(|case| case.said.as_deref()).unwrap_or_default();
                format!(
                    "{name}: {} directly, {} here. {said}",
                    word(state(direct, name)),
                    word(state(self, name))
                )
            })
            .collect()
    }

    /// Returns each failed case that is not in `known`, and each case in `known` that passed.
    pub(crate) fn unexpected(&self, known: &[&str]) -> Vec<String> {
        let failed = |case: &Case| !matches!(case.state, State::Passed | State::Skipped | State::Pending);
        let new = self.0.iter().filter(|(name, case)| failed(case) && !known.contains(&name.as_str()));
        let new = new.map(|(name, case)| format!("{name}: {}", case.said.as_deref().unwrap_or("failed")));
        let passed = |case: &Case| case.state == State::Passed;
        let fixed = known.iter().filter(|&&name| self.0.get(name).is_some_and(passed));
        new.chain(fixed.map(|name| format!("{name}: known to fail, and passed"))).collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: State,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

/// Reads ginkgo's JSON report. `tail` returns the end of the suite's log, for the error.
pub(crate) fn read(path: &Path, tail: impl FnOnce() -> String) -> Result<Outcomes, E2eError> {
    let parsed = std::fs::read(path)
        .map_err(|cause| cause.to_string())
        .and_then(|bytes| serde_json::from_slice::<Vec<Suite>>(&bytes).map_err(|cause| cause.to_string()))
        .map(outcomes)
        .and_then(
            |outcomes| if outcomes.0.is_empty() { Err("no case in it".to_owned()) } else { Ok(outcomes) },
        );
    parsed.map_err(|cause| E2eError::Report { path: path.to_owned(), cause, tail: tail() })
}

fn outcomes(suites: Vec<Suite>) -> Outcomes {
    let specs = suites.into_iter().filter_map(|suite| suite.spec_reports).flatten();
    // Setup and teardown nodes count only if they failed.
    let specs = specs.filter(|spec| spec.leaf_node_type == "It" || spec.state != State::Passed);
    Outcomes(specs.map(|spec| (spec.name(), spec.case())).collect())
}

impl Spec {
    fn name(&self) -> String {
        let mut words = self.container_hierarchy_texts.clone().unwrap_or_default();
        words.push(if self.leaf_node_text.is_empty() {
            self.leaf_node_type.clone()
        } else {
            self.leaf_node_text.clone()
        });
        words.join(" ")
    }

    fn case(&self) -> Case {
        let said = self
            .failure
            .as_ref()
            .map(|failure| failure.message.split_whitespace().collect::<Vec<_>>().join(" "));
        Case { state: self.state, said }
    }
}

/// Searches the logs of these processes for a panic and for the secret. Each process must have a log.
pub(crate) fn search_logs(logs: &Path, processes: &[&str]) -> Result<(), E2eError> {
    for process in processes {
        // The name of a process may contain dots.
        search(logs.join(format!("{process}.log")))?;
    }
    Ok(())
}

/// Searches the logs of all own processes, in a folder and its subfolders, for a panic and for the secret.
pub(crate) fn search_below(folder: &Path) -> Result<(), E2eError> {
    let failed = |cause| E2eError::Folder { path: folder.to_owned(), cause };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            search_below(&path)?;
        } else if OWN_LOGS.iter().any(|own| name.starts_with(own)) && name.ends_with(".log") {
            search(path)?;
        }
    }
    Ok(())
}

/// The prefixes of the log names of our own processes.
const OWN_LOGS: [&str; 5] = ["hub", "agent", "proxy", "endpoint", "node"];

fn search(path: PathBuf) -> Result<(), E2eError> {
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(cause) => return Err(E2eError::File { path, cause }),
    };
    let text = String::from_utf8_lossy(&bytes);
    for (what, sign) in [("a secret", SECRET), ("a panic", "panicked at")] {
        if let Some(line) = text.lines().find(|line| line.contains(sign)) {
            return Err(E2eError::Log { path, what, line: line.chars().take(300).collect() });
        }
    }
    Ok(())
}

/// Returns the rules whose violation an agent has logged, each with its count.
pub(crate) fn broken_rules(log: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut broken = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains("breaks a rule of the spec")) {
        let rule = line.split("rule=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("unnamed");
        *broken.entry(rule.to_owned()).or_default() += 1;
    }
    broken
}

/// The rules for orchestrators that csi-sanity breaks deliberately.
const BROKEN_DELIBERATELY: [&str; 2] = ["required_field", "same_arguments"];

/// Searches the agent's log for rule violations: csi-sanity must break all rules of its deliberate tests, and no other rule.
pub(crate) fn search_violations(logs: &Path) -> Result<(), E2eError> {
    let path = logs.join("agent.log");
    let text =
        std::fs::read_to_string(&path).map_err(|cause| E2eError::File { path: path.clone(), cause })?;
    let lines: Vec<_> = text.lines().filter(|line| line.contains("breaks a rule of the spec")).collect();
    let broken = |rule: &str| lines.iter().any(|line| line.contains(&format!("rule={rule} ")));
    if let Some(rule) = BROKEN_DELIBERATELY.into_iter().find(|rule| !broken(rule)) {
        let line = format!("{} other lines", lines.len());
        return Err(E2eError::Log {
            path,
            what: "no violation of a rule that csi-sanity breaks deliberately",
            line: format!("{rule}; {line}"),
        });
    }
    let meant = |line: &str| BROKEN_DELIBERATELY.iter().any(|rule| line.contains(&format!("rule={rule} ")));
    match lines.iter().find(|line| !meant(line)) {
        None => Ok(()),
        Some(line) => {
            let line = line.chars().take(500).collect();
            Err(E2eError::Log {
                path,
                what: "a violation of a rule that csi-sanity does not break deliberately",
                line,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Outcomes {
        outcomes(serde_json::from_str(json).unwrap())
    }

    fn report(cases: &[(&str, &str)]) -> Outcomes {
        let specs: Vec<String> = cases
            .iter()
            .map(|(name, state)| {
                format!(
                    r#"{{"ContainerHierarchyTexts":["Controller","Create"],"LeafNodeType":"It","LeafNodeText":"{name}","State":"{state}","Failure":{{"Message":"a\n  b"}}}}"#
                )
            })
            .collect();
        parse(&format!(r#"[{{"SpecReports":[{}]}}]"#, specs.join(",")))
    }

    #[test]
    fn the_report_of_ginkgo_is_read_case_by_case() {
        let outcomes =
            report(&[("a", "passed"), ("b", "failed"), ("c", "skipped"), ("d", "pending"), ("e", "novel")]);
        assert_eq!(
            (outcomes.count(State::Passed), outcomes.failed(), outcomes.count(State::Skipped)),
            (1, 2, 1)
        );
        let suite = r#"[{"SpecReports":[{"ContainerHierarchyTexts":null,"LeafNodeType":"BeforeSuite","LeafNodeText":"","State":"STATE"}]}]"#;
        assert_eq!(parse(&suite.replace("STATE", "passed")).failed(), 0);
        assert_eq!(
            parse(&suite.replace("STATE", "panicked")).failed(),
            1,
            "a suite that does not start is a failure"
        );
    }

    #[test]
    fn every_case_that_ends_otherwise_than_directly_is_named() {
        let direct = report(&[("a", "passed"), ("b", "failed"), ("c", "passed"), ("only-direct", "passed")]);
        let relayed = report(&[("a", "passed"), ("b", "failed"), ("c", "skipped"), ("only-here", "passed")]);
        let differences = relayed.differences(&direct);
        assert_eq!(differences.len(), 3, "{differences:?}");
        assert!(
            differences
                .iter()
                .any(|line| line.starts_with("Controller Create c: passed directly, skipped here"))
        );
        assert!(differences.iter().any(|line| line.contains("only-direct: passed directly, not run here")));
        assert!(direct.differences(&direct).is_empty());
    }

    #[test]
    fn reports_unknown_failures_and_known_ones_that_pass() {
        let outcomes = report(&[("a", "failed"), ("b", "failed"), ("c", "passed"), ("d", "skipped")]);
        let unexpected =
            outcomes.unexpected(&["Controller Create a", "Controller Create c", "Controller Create d"]);
        assert_eq!(
            unexpected,
            ["Controller Create b: a b", "Controller Create c: known to fail, and passed"]
        );
    }

    #[test]
    fn a_second_run_of_a_part_can_only_make_a_case_worse() {
        let mut whole = report(&[("a", "passed"), ("b", "failed"), ("c", "passed")]);
        whole.merge(&report(&[("a", "failed"), ("b", "passed"), ("c", "skipped")]));
        assert_eq!((whole.count(State::Passed), whole.failed()), (1, 2));
    }

    #[test]
    fn a_secret_or_a_panic_in_a_log_is_found() {
        for (line, found) in
            [("all is well", false), (SECRET, true), ("thread 'main' panicked at x.rs:1", true)]
        {
            let logs = tempfile::tempdir().unwrap();
            std::fs::write(logs.path().join("proxy-mock.csi.edge.log"), format!("first\n{line}\n")).unwrap();
            std::fs::write(logs.path().join("hub.log"), "").unwrap();
            std::fs::write(logs.path().join("sanity.log"), SECRET).unwrap();
            assert_eq!(search_logs(logs.path(), &["hub", "proxy-mock.csi.edge"]).is_err(), found, "{line}");
        }
    }

    #[test]
    fn a_process_without_a_log_is_an_error() {
        let logs = tempfile::tempdir().unwrap();
        assert!(search_logs(logs.path(), &["hub"]).is_err());
    }

    #[test]
    fn searches_own_logs_in_nested_folders() {
        for (name, found) in [("endpoint-held.log", true), ("agent.log", true), ("driver.log", false)] {
            let logs = tempfile::tempdir().unwrap();
            let inner = logs.path().join("3-client/again");
            std::fs::create_dir_all(&inner).unwrap();
            std::fs::write(inner.join(name), "thread 'main' panicked at x.rs:1\n").unwrap();
            assert_eq!(search_below(logs.path()).is_err(), found, "{name}");
        }
    }

    #[test]
    fn broken_rules_are_counted_by_their_names() {
        let logs = tempfile::tempdir().unwrap();
        let log = logs.path().join("agent.log");
        let line = "WARN the orchestrator breaks a rule of the spec rule=finish_teardown section=x";
        std::fs::write(&log, format!("{line}\nsomething else rule=none\n{line}\n")).unwrap();
        assert_eq!(broken_rules(&log), BTreeMap::from([("finish_teardown".to_owned(), 2)]));
    }

    #[test]
    fn a_rule_is_broken_on_purpose_or_not_at_all() {
        let line =
            |rule: &str| format!("WARN the orchestrator breaks a rule of the spec rule={rule} section=x\n");
        let [one, two] = BROKEN_DELIBERATELY.map(line);
        let other = line("one_staging_path");
        for (text, right) in
            [(format!("{one}{two}"), true), (one.clone(), false), (format!("{one}{two}{other}"), false)]
        {
            let logs = tempfile::tempdir().unwrap();
            std::fs::write(logs.path().join("agent.log"), &text).unwrap();
            assert_eq!(search_violations(logs.path()).is_ok(), right, "{text}");
        }
    }
}
