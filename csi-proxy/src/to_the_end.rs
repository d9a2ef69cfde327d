//! Work that goes on when nobody waits for it any more.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};

use tokio::runtime::Handle;

/// Work that is done where it is waited for, and from the moment it is dropped there in a task of its own.
///
/// A task from the beginning would do the same, but costs each call a second task, and two more wake-ups.
pub(crate) struct ToTheEnd {
    work: Option<Work>,
    runtime: Handle,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

impl ToTheEnd {
    /// This work. To be called in a runtime, which is the one that the rest of it is done in.
    pub(crate) fn of(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::current() }
    }

    /// No work.
    pub(crate) fn nothing() -> Self {
        Self { work: None, runtime: Handle::current() }
    }

    /// Works until that is there. What is left of the work then is done in a task.
    pub(crate) async fn until<T>(mut self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        poll_fn(|context| {
            // Not held meanwhile: work that panics is not to be polled again.
            self.work = self.work.take().and_then(|mut work| {
                let pending = work.as_mut().poll(context).is_pending();
                pending.then_some(work)
            });
            answer.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for ToTheEnd {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

impl fmt::Debug for ToTheEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToTheEnd").field("ended", &self.work.is_none()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_done_where_it_is_waited_for() {
        let (done, answer) = oneshot::channel();
        let task = tokio::task::try_id();
        let work = async move {
            tokio::task::yield_now().await;
            let _ = done.send(tokio::task::try_id() == task);
        };
        assert_eq!(ToTheEnd::of(work).until(answer).await, Ok(true));
    }

    #[tokio::test]
    async fn what_is_left_when_nobody_waits_any_more_is_done_in_a_task() {
        for polled in [false, true] {
            let (go, gone) = oneshot::channel::<()>();
            let (done, ended) = oneshot::channel();
            let work = async move {
                let _ = gone.await;
                let _ = done.send(());
            };
            let mut waits = Box::pin(ToTheEnd::of(work).until(pending::<()>()));
            if polled {
                assert!(waits.as_mut().now_or_never().is_none());
            }
            drop(waits);
            go.send(()).unwrap();
            assert_eq!(ended.await, Ok(()), "polled: {polled}");
        }
    }

    #[tokio::test]
    async fn an_answer_does_not_end_the_work() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let work = async move {
            let _ = gone.await;
            let _ = done.send(());
        };
        assert_eq!(ToTheEnd::of(work).until(async { 7 }).await, 7);
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok(()));
    }

    #[tokio::test]
    async fn work_that_panics_is_not_polled_again() {
        let (held, dropped) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            panic!("on purpose");
        };
        let waits = AssertUnwindSafe(ToTheEnd::of(work).until(pending::<()>())).catch_unwind();
        assert!(waits.await.is_err());
        assert!(dropped.await.is_err());
    }
}
