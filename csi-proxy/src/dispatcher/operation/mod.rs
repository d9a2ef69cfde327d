//! One execution at a time: which calls share a run of their driver, and which may begin at all.
//!
//! A sidecar's patience ends long before some drivers' work. Its retry is a call of its own, but the same *operation*:
//! the same request to the same driver, secrets aside ([`Identity`]). So, while this process lives:
//!
//! - while the operation runs, an equal call **joins** it, and all that wait at its end get the answer;
//! - a finished result is **replayed** for 60 s to the calls that asked for it: a proxy that lost a link sends the same
//!   call again, under the same id. If no caller waited when it finished, it is also given **once** to the next equal
//!   call, for 10 minutes. Not that of a Node call: a reboot undoes what it did, and nothing reports that;
//! - another operation on the same volume, snapshot or group meanwhile **waits** for its turn, a little and in the
//!   order in which they came. It has not begun: if its callers leave it never does. If its turn does not come it is
//!   refused with [`Fault::OperationPending`](crate::Fault::OperationPending), which is `ABORTED`;
//! - a kept result is **void** as soon as another operation begins on what it is about, and when too much is kept;
//! - of an operation that lost its driver the end is unknown. The next equal call runs it again, as CSI's idempotency
//!   allows;
//! - whatever leaves or fails, the driver's work runs to its end.
//!
//! A call that comes from a proxy begins only if its [`Fence`](crate::Fence) lets it: not if it is of a proxy that was
//! replaced, not if it was given up, and not if its number has begun before. Its fence is looked at when it arrives,
//! and again when its turn comes. That a number has begun is remembered longer than any result: where the result is
//! gone, a late copy of the call fails with [`Fault::StaleCall`](crate::Fault::StaleCall).
//!
//! [`Core`] is all of this without a clock or a task. A [`Dispatcher`](crate::Dispatcher) drives it.
//!
//! Only calls of mutating, unary methods of the spec are operations, and only if they can be read. All
//! others pass, if their fence lets them. One that may change something begins once under its number; one that only
//! reads may be sent again.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use bytes::Bytes;
//! use csi_proxy::dispatcher::operation::{Action, Answer, Core, Event, Identity, WaiterId};
//! use csi_proxy::{CallId, DriverName, Outcome};
//! use csi_proto::Method;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = DriverName::new("csi-hostpath")?;
//! // `volume_id: "vol-1"`
//! let identity = Identity::of(&driver, Method::DeleteVolume, b"\x0a\x05vol-1").ok_or("no volume id")?;
//! let (mut core, mut now) = (Core::new(Duration::from_secs(2)), Instant::now());
//! let ask = |number| Event::Ask {
//!     waiter: WaiterId::new(number),
//!     call: CallId::from_bytes([number as u8; 16]),
//!     identity: identity.clone(),
//!     fence: None,
//!     until: None,
//! };
//!
//! core.handle(now, ask(1));
//! let Some(Action::Run { operation, .. }) = core.poll_action() else { panic!("the driver is to be called") };
//! core.handle(now, Event::Left { waiter: WaiterId::new(1) });
//! now += Duration::from_secs(40);
//! let answer = Answer::new(Some(Bytes::new()), Outcome::ok()).ok_or("not the driver's")?;
//! core.handle(now, Event::Answered { operation, answer });
//!
//! core.handle(now, ask(2));
//! assert!(matches!(core.poll_action(), Some(Action::Answer { waiter, .. }) if waiter == WaiterId::new(2)));
//! # Ok(())
//! # }
//! ```

mod answer;
mod canonical;
mod deferred;
#[cfg(feature = "runtime")]
mod executor;
mod fence;
mod identity;
mod limits;
mod ranges;
mod single_flight;
mod subject;

pub use self::answer::Answer;
pub use self::canonical::Digest;
#[cfg(feature = "runtime")]
pub(crate) use self::executor::{Executor, Ticket, Verdict, Waiting};
pub use self::identity::Identity;
pub use self::single_flight::{Action, Core, Counts, Event, OperationId, WaiterId, Way};
#[cfg(feature = "runtime")]
pub(crate) use self::subject::of_request as subjects_of;
pub use self::subject::{BadRequest, Key, MAX_SUBJECT, MAX_SUBJECTS, Subject};
