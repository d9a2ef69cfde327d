//! Work that runs on when nobody waits for it any more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Work that is done where it is waited for, and from the moment it is dropped there in a task of its own.
///
/// A task from the beginning would do the same, but costs each call a second task, and two more wake-ups.
pub(crate) struct ToTheEnd<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> ToTheEnd<T> {
    /// This work; the rest of it is done in that runtime.
    pub(crate) fn new(runtime: Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime }
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Not held meanwhile: work that panics is not to be polled again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let end = work.as_mut().poll(context);
        if end.is_pending() {
            self.work = Some(work);
        }
        end
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
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
    async fn work_is_done_where_it_is_waited_for() {
        let task = tokio::task::try_id();
        let work = async move {
            tokio::task::yield_now().await;
            tokio::task::try_id() == task
        };
        assert!(ToTheEnd::new(Handle::current(), work).await);
    }

    #[tokio::test]
    async fn work_that_is_dropped_ends_in_a_task() {
        for polled in [false, true] {
            let (go, gone) = oneshot::channel::<()>();
            let (done, ended) = oneshot::channel();
            let work = async move {
                let _ = gone.await;
                let _ = done.send(());
            };
            let mut waits = ToTheEnd::new(Handle::current(), work);
            if polled {
                assert!((&mut waits).now_or_never().is_none());
            }
            drop(waits);
            go.send(()).unwrap();
            assert_eq!(ended.await, Ok(()), "polled: {polled}");
        }
    }

    #[tokio::test]
    async fn work_that_panics_is_not_polled_again() {
        let (held, dropped) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            panic!("on purpose");
        };
        let waits = AssertUnwindSafe(ToTheEnd::<()>::new(Handle::current(), work)).catch_unwind();
        assert!(waits.await.is_err());
        assert!(dropped.await.is_err());
    }
}
