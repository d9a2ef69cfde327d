//! One execution an operation: what a driver is at, and the answers that wait for their askers.
//!
//! A sidecar's patience ends long before some drivers' work. Its retry is a call of its own, but the same *operation*: the same
//! request to the same driver, secrets aside ([`Identity`]). So:
//!
//! - while the operation runs, the retry **joins** it, and whoever waits at its end gets the answer;
//! - if nobody waits at its end, the answer is **kept** and handed out **once**, to the next asker of the same identity. Not that
//!   of a Node call: a reboot undoes what it did, and nobody says so;
//! - an answer is handed out when its asker has it. Where that takes time to find out, as behind a session, it is **sent** meanwhile:
//!   whoever asks is given it too, and if it gets lost on its way to all of them, it is kept as before. Of an answer that was on
//!   its way when the process was killed nobody will know whether it has come: it is not given again, and who asks has the operation
//!   done again;
//! - another operation on the same volume, snapshot or group meanwhile **waits** for its turn, a little ([`Limits::wait`]) and in the
//!   order in which they came. It has not begun: no journal knows it, and if its callers leave it never does. If its turn does not come
//!   it is refused with [`Fault::OperationPending`](crate::Fault::OperationPending), which is `ABORTED`;
//! - a kept answer is **void** as soon as another operation begins on what it is about, and when it gets too old or too many are
//!   kept ([`Limits`]);
//! - an operation whose end is not known, because the driver was lost, is **uncertain**: the next asker has it done again, as
//!   CSI's idempotency allows.
//!
//! [`Core`] is all of this without a clock, a task or a disk. A [`Dispatcher`](crate::Dispatcher) drives it, and
//! [`journal`] keeps it over a restart.
//!
//! Only calls of mutating, unary methods of the spec take part, and only if they name what they are about. All others pass.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use bytes::Bytes;
//! use csi_proxy::operation::{Action, Answer, AskerId, Core, Event, Identity, Limits};
//! use csi_proxy::{DriverName, Outcome};
//! use csi_proto::Method;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = DriverName::new("csi-hostpath")?;
//! // `name: "pvc-1"`
//! let delete = Identity::of(&driver, Method::DeleteVolume, b"\x0a\x05vol-1").ok_or("no volume id")?;
//! let (mut core, mut now) = (Core::new(Limits::default()), Instant::now());
//! let ask = |asker| Event::Ask { asker: AskerId::new(asker), identity: delete.clone(), until: None };
//!
//! core.handle(now, ask(1));
//! let Some(Action::Record(_)) = core.poll_action() else { panic!("the journal comes first") };
//! let Some(Action::Run { operation, .. }) = core.poll_action() else { panic!("the driver is to be called") };
//! core.handle(now, Event::Left { asker: AskerId::new(1) });
//! now += Duration::from_secs(40);
//! let answer = Answer::new(Some(Bytes::new()), Outcome::ok()).ok_or("not the driver's")?;
//! core.handle(now, Event::Answered { operation, answer });
//! while core.poll_action().is_some() {}
//!
//! core.handle(now, ask(2));
//! assert!(matches!(core.poll_action(), Some(Action::Answer { asker, .. }) if asker == AskerId::new(2)));
//! # Ok(())
//! # }
//! ```

mod answer;
mod by_key;
mod canonical;
mod core;
mod counted;
mod deferred;
#[cfg(feature = "runtime")]
mod desk;
mod identity;
pub mod journal;
mod limits;
mod subject;

pub use self::answer::Answer;
pub use self::canonical::Digest;
pub use self::core::{
    Action, AskerId, Core, Counts, Entry, Event, OperationId, Restored, Stage, Uncertain, Way,
};
#[cfg(feature = "runtime")]
pub(crate) use self::desk::{Asked, Desk, Part, Receipt, Run};
pub use self::identity::Identity;
pub use self::limits::Limits;
pub use self::subject::{Key, MAX_SUBJECT, MAX_SUBJECTS, Subject};
