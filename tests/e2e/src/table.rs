//! The printed results of a test.

use std::time::Duration;

use libtest_mimic::Failed;
use serde::{Deserialize, Serialize};

use super::report::{Outcomes, State};
use super::test_run::{Route, TestRun};

/// A check, in words, and its result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fact {
    pub(crate) words: String,
    pub(crate) right: bool,
}

/// Prints and returns the result of a csi-sanity run; `direct` is the driver's result without a relay.
pub(crate) fn compared(
    test_run: TestRun,
    outcomes: &Outcomes,
    direct: &Outcomes,
    took: Duration,
) -> Result<(), Failed> {
    let wrong = match test_run.route {
        Route::Direct => outcomes.unexpected(test_run.subject.known_failures()),
        Route::Relayed(..) | Route::Shim | Route::Embedded(_) => outcomes.differences(direct),
    };
    let (passed, failed, skipped) =
        (outcomes.count(State::Passed), outcomes.failed(), outcomes.count(State::Skipped));
    let decision = match test_run.route {
        _ if !wrong.is_empty() => "unexpected results",
        Route::Direct if failed > 0 => "known failures only",
        Route::Direct => "good",
        Route::Relayed(..) | Route::Shim | Route::Embedded(_) => "same as direct",
    };
    say(&line(&test_run.to_string(), [passed, failed, skipped], took, decision));
    failing(&wrong)
}

/// Prints the facts of a test, and returns its result.
pub(crate) fn found(name: &str, facts: Vec<Fact>, took: Duration) -> Result<(), Failed> {
    let (right, wrong): (Vec<_>, Vec<_>) = facts.into_iter().partition(|fact| fact.right);
    let decision = if wrong.is_empty() { "good" } else { "failed" };
    let mut text = line(name, [right.len(), wrong.len(), 0], took, decision);
    right.iter().for_each(|fact| text.push_str(&format!("\n  {}", fact.words)));
    say(&text);
    failing(&wrong.into_iter().map(|fact| fact.words).collect::<Vec<_>>())
}

fn line(name: &str, [passed, failed, skipped]: [usize; 3], took: Duration, decision: &str) -> String {
    let seconds = took.as_secs_f64();
    format!(
        "{name:<22} {passed:>4} passed {failed:>3} failed {skipped:>3} skipped {seconds:>6.1} s  {decision}"
    )
}

fn failing(wrong: &[String]) -> Result<(), Failed> {
    if wrong.is_empty() { Ok(()) } else { Err(Failed::from(wrong.join("\n"))) }
}

/// Prints a line for the person who runs the tests.
#[allow(clippy::print_stdout, reason = "tests without the standard harness print to stdout")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
