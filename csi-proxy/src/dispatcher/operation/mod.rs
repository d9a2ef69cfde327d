//! One execution at a time: which calls share an execution at their driver, and which may begin at all.
//!
//! Sidecars time out long before some drivers finish. A retry is another call, but the same *operation*: the same
//! request to the same driver, except for secrets ([`Identity`]). While this process runs:
//!
//! - while the operation runs, an equal call **joins** it, and all waiters get its answer;
//! - a finished result is **replayed** for 60 s to copies of the calls that requested it: a proxy that lost a link
//!   sends the same call again, with the same id. If no caller waited when it finished, it is also returned **once**
//!   to the next equal call, for 10 minutes. Results of Node calls are not kept: a reboot undoes them, and nothing
//!   reports that;
//! - another operation on the same volume, snapshot or group **waits** in a short queue, first come, first served,
//!   but those of callers on the node before those of other hosts. A queued operation has not begun: it never begins
//!   if its callers leave. After the queue timeout it is refused with
//!   [`Fault::OperationPending`](crate::Fault::OperationPending), which is `ABORTED`;
//! - a kept result is **invalidated** when another operation begins on one of its subjects, and evicted when too many
//!   are kept;
//! - the result of an operation that lost its driver is unknown. The next equal call executes it again, as CSI's
//!   idempotency allows;
//! - the work of an operation runs to completion, whatever fails or leaves.
//!
//! A call from a proxy begins only if its fence permits it: not if its proxy was replaced, not if it
//! was given up, and not if its number has begun before. The fence is checked when the call arrives, and again when it
//! leaves the queue. A begun number is remembered longer than any result: a late copy of the call fails with
//! [`Fault::StaleCall`](crate::Fault::StaleCall).
//!
//! With or without a fence, a call that may change something begins once per call id, until 60 s after its end: what bus
//! carried the copies, and why, does not matter. A copy whose result is not kept, because it was invalidated or evicted,
//! is that of a Node call or of a method without an identity, fails with
//! [`Fault::AlreadyBegun`](crate::Fault::AlreadyBegun), which does not claim that nothing was sent. Only a call that
//! provably never reached the driver has not begun.
//!
//! `Core` implements this without a clock or a task. A [`Dispatcher`](crate::Dispatcher) drives one for each driver.
//! Per driver at most 4096 results with 4 MiB in total are kept, 16,384 calls wait, and 256 operations are queued, eight
//! on one subject. Calls of other hosts use at most half of the places for waiting and queued ones.
//!
//! The ids of 16,384 ended calls are remembered, in about 1.5 MiB.
//!
//! Only calls of mutating, unary methods of the spec are operations. A call whose request names no readable subjects is
//! refused: the driver may read it otherwise. All other calls pass if their fence permits. Each copy of a read-only call is
//! executed, streams included, and ends when its caller leaves: a retry needs a fresh
//! answer, and the answer to a stream is not kept. A method that the spec does not define counts as one that changes
//! something.

mod answer;
mod begun;
mod deferred;
mod driver_executor;
mod fence;
mod identity;
mod limits;
mod ranges;
mod single_flight;

pub(crate) use self::answer::Answer;
pub(crate) use self::driver_executor::{BegunCall, Decision, DriverExecutor, RunningOperation, Waiting};
pub use self::identity::Identity;
pub(crate) use self::limits::share;
pub use self::single_flight::Counts;
pub(crate) use self::single_flight::Served;
