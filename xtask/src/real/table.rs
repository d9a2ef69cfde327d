//! What a person sees of a run.

use std::time::Duration;

use super::error::RealError;
use super::leg::{Leg, Way};
use super::report::{Outcomes, State};

/// How one leg went.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    /// How csi-sanity reached the driver; none if this was no run of it.
    way: Option<Way>,
    result: Result<Counts, NoCounts>,
    /// What is not as it should be, a line each.
    wrong: Vec<String>,
    /// What a person may want to read of it though it is right, a line each.
    told: Vec<String>,
    took: Duration,
}

/// Something that was looked at, in words, and whether it is as it should be.
#[derive(Debug)]
pub(crate) struct Fact {
    pub(crate) words: String,
    pub(crate) right: bool,
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
            (Way::Relayed(..) | Way::Shim, Some(direct)) => outcomes.differences(direct),
            (Way::Relayed(..) | Way::Shim, None) => {
                vec!["the direct run gave nothing to compare with".to_owned()]
            }
        };
        let counts = Counts {
            passed: outcomes.count(State::Passed),
            failed: outcomes.failed(),
            skipped: outcomes.count(State::Skipped),
        };
        let told = Vec::new();
        Self { name: leg.to_string(), way: Some(leg.way), result: Ok(counts), wrong, told, took }
    }

    /// An errand that went through.
    pub(crate) fn of_errand(name: String, facts: Vec<Fact>, took: Duration) -> Self {
        let (right, wrong): (Vec<_>, Vec<_>) = facts.into_iter().partition(|fact| fact.right);
        let counts = Counts { passed: right.len(), failed: wrong.len(), skipped: 0 };
        let words = |facts: Vec<Fact>| facts.into_iter().map(|fact| fact.words).collect();
        Self { name, way: None, result: Ok(counts), wrong: words(wrong), told: words(right), took }
    }

    /// A leg that did not get through.
    pub(crate) fn broken(name: String, error: &RealError, took: Duration) -> Self {
        let (wrong, told) = (vec![error.to_string()], Vec::new());
        Self { name, way: None, result: Err(NoCounts::Broken), wrong, told, took }
    }

    /// A leg that this host cannot run.
    pub(crate) fn not_run(name: String, reason: &str) -> Self {
        let (wrong, told) = (vec![reason.to_owned()], Vec::new());
        Self { name, way: None, result: Err(NoCounts::NotRun), wrong, told, took: Duration::ZERO }
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
        let leg = &self.name;
        let seconds = self.took.as_secs_f64();
        let verdict = match (&self.result, self.way) {
            (Err(NoCounts::NotRun), _) => "not run".to_owned(),
            (Err(NoCounts::Broken), _) => "broken".to_owned(),
            (Ok(_), _) if !self.wrong.is_empty() => {
                format!("{} cases are not as they should be", self.wrong.len())
            }
            (Ok(counts), Some(Way::Direct)) if counts.failed > 0 => "as known".to_owned(),
            (Ok(_), Some(Way::Direct) | None) => "good".to_owned(),
            (Ok(_), Some(Way::Relayed(..) | Way::Shim)) => "same as direct".to_owned(),
        };
        let [passed, failed, skipped] = match &self.result {
            Ok(counts) => [counts.passed, counts.failed, counts.skipped].map(|count| count.to_string()),
            Err(_) => ["-", "-", "-"].map(ToOwned::to_owned),
        };
        format!("{leg:<20} {passed:>6} {failed:>6} {skipped:>7} {seconds:>7.1} s  {verdict}")
    }
}

/// The table, and under it what is wrong.
pub(crate) fn print(rows: &[Row]) {
    say("");
    say("leg                  passed failed skipped   seconds  result");
    rows.iter().for_each(|row| say(&row.line()));
    for row in rows.iter().filter(|row| !row.wrong.is_empty() || !row.told.is_empty()) {
        say(&format!("\n{}:", row.name));
        row.told.iter().for_each(|line| say(&format!("  {line}")));
        row.wrong.iter().for_each(|line| say(&format!("  wrong: {line}")));
    }
    say("");
}

/// One line for whoever runs the chore.
#[allow(clippy::print_stdout, reason = "a command line tool speaks on stdout")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
