//! A future that continues in a task when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Polls the work in the task of the caller, and spawns the rest when dropped.
///
/// Spawning a task from the start would behave the same, but would cost each call a second task and two wake-ups.
pub(crate) struct DetachOnDrop<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// Wraps a future; the rest of it runs in this runtime.
    pub(crate) fn new(runtime: Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime }
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // The work is not stored while it is polled: after a panic it must not be polled again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let end = work.as_mut().poll(context);
        if end.is_pending() {
            self.work = Some(work);
        }
        end
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn runs_in_the_task_of_the_caller() {
        let task = tokio::task::try_id();
        let work = async move {
            tokio::task::yield_now().await;
            tokio::task::try_id() == task
        };
        assert!(DetachOnDrop::new(Handle::current(), work).await);
    }

    #[tokio::test]
    async fn dropped_work_completes_in_a_task() {
        for polled in [false, true] {
            let (start, started) = oneshot::channel::<()>();
            let (done, ended) = oneshot::channel();
            let work = async move {
                let _ = started.await;
                let _ = done.send(());
            };
            let mut waits = DetachOnDrop::new(Handle::current(), work);
            if polled {
                assert!((&mut waits).now_or_never().is_none());
            }
            drop(waits);
            start.send(()).unwrap();
            assert_eq!(ended.await, Ok(()), "polled: {polled}");
        }
    }

    #[tokio::test]
    async fn panicked_work_is_not_polled_again() {
        let (held, dropped) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            panic!("on purpose");
        };
        let waits = AssertUnwindSafe(DetachOnDrop::<()>::new(Handle::current(), work)).catch_unwind();
        assert!(waits.await.is_err());
        assert!(dropped.await.is_err());
    }
}
