//! The table of steps: one line for each step, with its time.

use std::fmt::Display;
use std::time::{Duration, Instant};

use edge_csi_common::process::print_line;

/// The place of a step in the cloud, on the proxy's socket: the call is sent over the link.
pub(super) const CLOUD: &str = "cloud";
/// The place of a step on the node, on the driver's own socket.
pub(super) const NODE: &str = "node";
/// The place of a step that starts or stops the parts.
pub(super) const PARTS: &str = "parts";

/// The error of a failed step.
#[derive(Debug, Clone, thiserror::Error)]
#[error("step {step:?} failed: {cause}")]
pub(super) struct StepFailed {
    pub(super) step: &'static str,
    pub(super) cause: String,
}

/// The printed part of the table.
#[derive(Debug)]
pub(super) struct StepTable {
    began: Instant,
    steps: usize,
}

impl StepTable {
    /// Prints the head of the table.
    pub(super) fn begin() -> Self {
        print_line(format_args!("\n  #         time  where  step"));
        Self { began: Instant::now(), steps: 0 }
    }

    /// Runs one step and prints its result. `describe` returns the text of the value.
    ///
    /// # Errors
    /// If the step fails.
    pub(super) async fn step<T, E: Display, D: Display>(
        &mut self,
        place: &'static str,
        name: &'static str,
        step: impl Future<Output = Result<T, E>>,
        describe: impl FnOnce(&T) -> D,
    ) -> Result<T, StepFailed> {
        self.steps += 1;
        let began = Instant::now();
        let outcome = step.await;
        let text = outcome.as_ref().map_or_else(|_| "FAILED".to_owned(), |value| describe(value).to_string());
        let (number, took) = (self.steps, milliseconds(began.elapsed()));
        print_line(format_args!("{number:>3}  {took:>8} ms  {place:<5}  {name}: {text}"));
        outcome.map_err(|cause| StepFailed { step: name, cause: cause.to_string() })
    }

    /// Prints the number of steps and their total time.
    pub(super) fn end(&self) {
        let (number, took) = (self.steps, milliseconds(self.began.elapsed()));
        print_line(format_args!("     {took:>8} ms  all\n\nall {number} steps went well"));
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1_000.0)
}
