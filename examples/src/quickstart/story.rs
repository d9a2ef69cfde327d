//! The steps as they are told: each with its time when it is done, and a table at the end.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// A step did not end as it should.
#[derive(Debug, Clone, thiserror::Error)]
#[error("step {step:?} failed: {cause}")]
pub(super) struct StepFailed {
    /// Name of the step.
    pub(super) step: &'static str,
    /// What went wrong.
    pub(super) cause: String,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    place: Place,
    took: Duration,
}

/// Where a step happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the cloud, on the proxy's socket: the call travels over the link.
    Cloud,
    /// On the node, on the driver's own socket.
    Node,
    /// In the parts of this process themselves.
    Parts,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Node => "node",
            Self::Parts => "parts",
        }
    }
}

/// What has been told so far.
#[derive(Debug)]
pub(super) struct Story {
    began: Instant,
    steps: Vec<Step>,
}

impl Story {
    /// Begins.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), steps: Vec::new() }
    }

    /// Does one step and tells how it ended. What it is good for to the reader stands in the text that `told` makes of
    /// its value.
    ///
    /// # Errors
    /// If the step fails.
    pub(super) async fn step<T, E: Display, D: Display>(
        &mut self,
        place: Place,
        name: &'static str,
        step: impl Future<Output = Result<T, E>>,
        told: impl FnOnce(&T) -> D,
    ) -> Result<T, StepFailed> {
        let began = Instant::now();
        let outcome = step.await;
        let took = began.elapsed();
        match outcome {
            Ok(value) => {
                say(format_args!(
                    "{:>9} ms  {:<5}  {name}: {}",
                    milliseconds(took),
                    place.name(),
                    told(&value)
                ));
                self.steps.push(Step { name, place, took });
                Ok(value)
            }
            Err(cause) => {
                say(format_args!("{:>9} ms  {:<5}  {name}: FAILED", milliseconds(took), place.name()));
                Err(StepFailed { step: name, cause: cause.to_string() })
            }
        }
    }

    /// Prints the table.
    pub(super) fn end(&self) {
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or_default();
        let rule = "-".repeat(width);
        say(format_args!("\n  #  {:width$}  where         ms", "step"));
        say(format_args!(" --  {rule}  -----  ---------"));
        for (number, step) in self.steps.iter().enumerate() {
            let (name, place, took) = (step.name, step.place.name(), milliseconds(step.took));
            say(format_args!("{:>3}  {name:width$}  {place:<5}  {took:>9}", number + 1));
        }
        let total = milliseconds(self.began.elapsed());
        say(format_args!(" --  {rule}  -----  ---------\n     {:width$}         {total:>9}", "all"));
        say(format_args!("\nall {} steps went well", self.steps.len()));
    }
}

/// One line on stdout, which is what the quickstart is for.
pub(super) fn say(line: impl Display) {
    // A reader who has closed the pipe has seen enough.
    let _ = writeln!(io::stdout(), "{line}");
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1_000.0)
}
