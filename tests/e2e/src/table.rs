//! What a person sees of a test.

use std::time::Duration;

use libtest_mimic::Failed;

use super::leg::{Leg, Way};
use super::report::{Outcomes, State};

/// Something that was looked at, in words, and whether it is as it should be.
#[derive(Debug)]
pub(crate) struct Fact {
    pub(crate) words: String,
    pub(crate) right: bool,
}

/// How a run of csi-sanity went; `direct` is what the driver itself gave.
pub(crate) fn compared(
    leg: Leg,
    outcomes: &Outcomes,
    direct: &Outcomes,
    took: Duration,
) -> Result<(), Failed> {
    let wrong = match leg.way {
        Way::Direct => outcomes.surprises(leg.subject.known_failures()),
        Way::Relayed(..) | Way::Shim => outcomes.differences(direct),
    };
    let (passed, failed, skipped) =
        (outcomes.count(State::Passed), outcomes.failed(), outcomes.count(State::Skipped));
    let verdict = match leg.way {
        _ if !wrong.is_empty() => "not as it should be",
        Way::Direct if failed > 0 => "as known",
        Way::Direct => "good",
        Way::Relayed(..) | Way::Shim => "same as direct",
    };
    say(&line(&leg.to_string(), [passed, failed, skipped], took, verdict));
    failing(&wrong)
}

/// How it went where facts were looked at.
pub(crate) fn found(name: &str, facts: Vec<Fact>, took: Duration) -> Result<(), Failed> {
    let (right, wrong): (Vec<_>, Vec<_>) = facts.into_iter().partition(|fact| fact.right);
    let verdict = if wrong.is_empty() { "good" } else { "not as it should be" };
    let mut text = line(name, [right.len(), wrong.len(), 0], took, verdict);
    right.iter().for_each(|fact| text.push_str(&format!("\n  {}", fact.words)));
    say(&text);
    failing(&wrong.into_iter().map(|fact| fact.words).collect::<Vec<_>>())
}

fn line(name: &str, [passed, failed, skipped]: [usize; 3], took: Duration, verdict: &str) -> String {
    let seconds = took.as_secs_f64();
    format!(
        "{name:<22} {passed:>4} passed {failed:>3} failed {skipped:>3} skipped {seconds:>6.1} s  {verdict}"
    )
}

fn failing(wrong: &[String]) -> Result<(), Failed> {
    if wrong.is_empty() { Ok(()) } else { Err(Failed::from(wrong.join("\n"))) }
}

/// For whoever runs the tests.
#[allow(clippy::print_stdout, reason = "tests without the standard harness speak on stdout")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
