//! Tasks that the agent needs: the process exits when one of them panics.

use std::collections::HashMap;
use std::future::pending;

use tokio::task::{Id, JoinError, JoinSet};

use edge_csi_common::process::Fatal;

/// The tasks that the agent needs. They are aborted on drop.
#[derive(Debug, Default)]
pub(super) struct Essential {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Essential {
    /// Spawns a task. The error reports `name` if the task ends.
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task has ended, which only a panic causes. Never returns if there is no task.
    pub(super) async fn ended(&mut self) -> Fatal {
        let Some(ended) = self.tasks.join_next_with_id().await else { return pending().await };
        // The panic hook has printed the panic's message.
        let id = ended.map_or_else(|panic: JoinError| panic.id(), |(id, ())| id);
        let name = self.names.get(&id).copied().unwrap_or("a task");
        Fatal::Runtime(format!("{name} has ended: volumes stay unchanged until the agent is restarted"))
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
