//! An answer is void as soon as another operation begins on its volume: whoever asks after that does not get it.

use std::time::Duration;

use super::Verdict;
use crate::plan::{Operation, OperationKind};
use crate::vendor::Execution;

#[derive(Debug, Default)]
pub(crate) struct Void {
    verdict: Verdict,
}

impl Void {
    /// An agent gives the answer of an execution to a call that asked at `asked`.
    pub(crate) fn given(
        &mut self,
        at: Duration,
        runs: &[Execution],
        operations: &[Operation],
        execution: usize,
        asked: Duration,
    ) {
        let Some(given) = runs.get(execution) else { return };
        let (Some(ended), Some(wanted)) = (given.ended, operations.get(given.operation)) else { return };
        if asked <= ended {
            return;
        }
        let creates = |operation: &Operation| operation.kind == OperationKind::Create;
        let later = runs.iter().enumerate().find_map(|(index, run)| {
            let other = operations.get(run.operation).filter(|other| other.is_about(wanted))?;
            // Which volume a creation is about is known to nobody before its answer is given, and never if that is an error.
            let touched = match (creates(wanted), creates(other)) {
                (false, true) => run.given.filter(|_| !other.fails)?,
                (true, false) if wanted.fails => return None,
                _ => run.began,
            };
            // What begins while a volume is made may undo it before its end.
            let after = if creates(wanted) { index > execution } else { touched >= ended };
            (run.operation != given.operation && after && touched < asked).then_some(index)
        });
        if let Some(later) = later {
            self.verdict.broken("a void answer is not given", at, || {
                format!("who asked at {asked:?} got the answer of execution {execution}, which ended at {ended:?}; execution {later} has begun on the same volume since")
            });
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
