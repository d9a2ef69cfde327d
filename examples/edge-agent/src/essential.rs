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

    /// Waits until a task has ended, which only a panic causes. Never returns if there is no task.
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

    /// An agent that is ready and connected but manages no volumes would seem healthy.
    #[tokio::test]
    async fn a_panic_ends_all_tasks() {
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
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
        assert!(ended.await.is_err());
    }
}
