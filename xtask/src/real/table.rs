//! What a person sees of a run.

use std::time::Duration;

use super::error::RealError;
use super::leg::{Leg, Way};
use super::report::{Outcomes, State};

/// How one leg went.
#[derive(Debug)]
pub(crate) struct Row {
    leg: Leg,
    result: Result<Counts, NoCounts>,
    /// What is not as it should be, a line each.
    wrong: Vec<String>,
    took: Duration,
}

#[derive(Debug)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

#[derive(Debug)]
enum NoCounts {
    /// The host does not allow it.
    NotRun,
    /// It broke on the way.
    Broken,
}

impl Row {
    /// A leg that went through; `direct` is what the driver itself gave.
    pub(crate) fn finished(leg: Leg, outcomes: &Outcomes, direct: Option<&Outcomes>, took: Duration) -> Self {
        let wrong = match (leg.way, direct) {
            (Way::Direct, _) => outcomes.surprises(leg.subject.known_failures()),
            (Way::Relayed(_), Some(direct)) => outcomes.differences(direct),
            (Way::Relayed(_), None) => vec!["the direct run gave nothing to compare with".to_owned()],
        };
        let counts = Counts {
            passed: outcomes.count(State::Passed),
            failed: outcomes.failed(),
            skipped: outcomes.count(State::Skipped),
        };
        Self { leg, result: Ok(counts), wrong, took }
    }

    /// A leg that did not get through.
    pub(crate) fn broken(leg: Leg, error: &RealError, took: Duration) -> Self {
        Self { leg, result: Err(NoCounts::Broken), wrong: vec![error.to_string()], took }
    }

    /// A leg that this host cannot run.
    pub(crate) fn not_run(leg: Leg, reason: &str) -> Self {
        Self { leg, result: Err(NoCounts::NotRun), wrong: vec![reason.to_owned()], took: Duration::ZERO }
    }

    /// Whether the whole run fails by it; `strict` if what did not run counts too.
    pub(crate) fn failed(&self, strict: bool) -> bool {
        match self.result {
            Err(NoCounts::NotRun) => strict,
            _ => !self.wrong.is_empty(),
        }
    }

    /// The row as text.
    pub(crate) fn line(&self) -> String {
        let leg = self.leg.to_string();
        let seconds = self.took.as_secs_f64();
        let verdict = match (&self.result, self.leg.way) {
            (Err(NoCounts::NotRun), _) => "not run".to_owned(),
            (Err(NoCounts::Broken), _) => "broken".to_owned(),
            (Ok(_), _) if !self.wrong.is_empty() => {
                format!("{} cases are not as they should be", self.wrong.len())
            }
            (Ok(counts), Way::Direct) if counts.failed > 0 => "as known".to_owned(),
            (Ok(_), Way::Direct) => "good".to_owned(),
            (Ok(_), Way::Relayed(_)) => "same as direct".to_owned(),
        };
        let [passed, failed, skipped] = match &self.result {
            Ok(counts) => [counts.passed, counts.failed, counts.skipped].map(|count| count.to_string()),
            Err(_) => ["-", "-", "-"].map(ToOwned::to_owned),
        };
        format!("{leg:<16} {passed:>6} {failed:>6} {skipped:>7} {seconds:>7.1} s  {verdict}")
    }
}

/// The table, and under it what is wrong.
pub(crate) fn print(rows: &[Row]) {
    say("");
    say("leg              passed failed skipped   seconds  result");
    rows.iter().for_each(|row| say(&row.line()));
    for row in rows.iter().filter(|row| !row.wrong.is_empty()) {
        say(&format!("\n{}:", row.leg));
        row.wrong.iter().for_each(|line| say(&format!("  {line}")));
    }
    say("");
}

/// One line for whoever runs the chore.
#[allow(clippy::print_stdout, reason = "a command line tool speaks on stdout")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
