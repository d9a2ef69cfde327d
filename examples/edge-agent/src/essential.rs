//! Tasks without which the agent would be taken for well and do nothing.

use std::collections::HashMap;
use std::future::pending;

use tokio::task::{Id, JoinError, JoinSet};

use edge_csi_common::process::Fatal;

/// Tasks that run until this is dropped. That one of them ends is the end of the process.
#[derive(Debug, Default)]
pub(super) struct Essential {
    tasks: JoinSet<()>,
    what: HashMap<Id, &'static str>,
}

impl Essential {
    /// Runs one more. `what` it does is for the operator.
    pub(super) fn spawn(&mut self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.what.insert(id, what);
    }

    /// Waits until one has ended, which only a panic can bring about. Waits for ever if there is none.
    pub(super) async fn ended(&mut self) -> Fatal {
        let Some(ended) = self.tasks.join_next_with_id().await else { return pending().await };
        // What it says was printed when it panicked.
        let id = ended.map_or_else(|panic: JoinError| panic.id(), |(id, ())| id);
        let what = self.what.get(&id).copied().unwrap_or("a task");
        Fatal::Runtime(format!("{what} has ended: volumes stay as they are until the agent is started again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is `ready` and connected and has no volumes would be taken for good.
    #[tokio::test]
    async fn a_panic_of_one_is_the_end_of_the_process_and_of_all_that_runs_beside_it() {
        let (alive, gone) = tokio::sync::oneshot::channel::<()>();
        let mut essential = Essential::default();
        essential.spawn("the clock", async move {
            let _alive = alive;
            pending::<()>().await;
        });
        essential.spawn("the store", async { panic!("it is beyond repair") });
        let fatal = essential.ended().await;
        assert_eq!(fatal.exit_code(), 1);
        assert!(fatal.to_string().contains("the store has ended"), "{fatal}");
        drop(essential);
        assert!(gone.await.is_err());
    }
}
