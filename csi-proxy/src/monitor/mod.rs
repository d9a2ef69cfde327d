//! Monitors whether an orchestrator follows the spec in its calls to a driver.
//!
//! CSI defines the order of an orchestrator's calls, and what it may do after a failure. A driver need not detect
//! violations; volumes leak, or data is lost, later and elsewhere. `Monitored` (feature `runtime`) is a relay that
//! observes each call that it forwards and its result, and reports the broken rule, but changes and rejects nothing.
//!
//! The monitor decides by the code that the orchestrator received:
//!
//! - A setup call (attach, stage, publish) with OK is in effect. A setup call that was cancelled, or ended with a
//!   code that means "may still be running", may be repeated or undone. With any other code it has no effect.
//! - A teardown call (unpublish, unstage, detach) that did not end with OK may only be repeated. After NOT_FOUND and
//!   UNIMPLEMENTED the orchestrator must determine the state, so the state is unknown here.
//! - The state before the first observed call is unknown. A call that earlier unobserved calls may justify is not a
//!   violation. The same applies to evicted state. The state of a volume whose creation was observed is fully known.
//!
//! Secrets are not read, and only the ids and paths of a request and its digest are stored.
//!
//! The pure core, for calls that do not pass as [`Call`](crate::Call)s:
//!
//! ```
//! use std::time::Instant;
//!
//! use csi_proto::Method;
//! use csi_proto::csi::v1::NodeUnstageVolumeRequest;
//! use csi_proto::csi::v1::NodePublishVolumeRequest;
//! use csi_proxy::Code;
//! use csi_proxy::advanced::monitor::{InitialState, CallNumber, End, Event, Limits, Monitor, Rule};
//! use prost::Message as _;
//!
//! let mut monitor = Monitor::new(Limits::default(), InitialState::Unknown);
//! let now = Instant::now();
//! let (volume_id, target_path) = ("vol-1".to_owned(), "/pods/1/mount".to_owned());
//! let capability = Some(Default::default());
//! let publish = NodePublishVolumeRequest {
//!     volume_id: volume_id.clone(), target_path, volume_capability: capability, ..Default::default()
//! };
//! let body = publish.encode_to_vec();
//! let call = CallNumber::new(1);
//! monitor.handle(now, Event::Began { call, method: Method::NodePublishVolume, body: &body });
//! monitor.handle(now, Event::Ended { call, end: End::Answered { code: Code::OK, message: None } });
//!
//! let unstage = NodeUnstageVolumeRequest { volume_id, staging_target_path: "/stage/1".to_owned() }.encode_to_vec();
//! let began = Event::Began { call: CallNumber::new(2), method: Method::NodeUnstageVolume, body: &unstage };
//! let violations = monitor.handle(now, began);
//! assert_eq!(violations[0].rule, Rule::UnstageWhilePublished);
//! ```

mod check;
pub(crate) mod core;
pub(crate) mod event;
#[cfg(feature = "runtime")]
mod layer;
mod request;
pub(crate) mod rule;
#[cfg(test)]
mod tests;
mod volume;

pub use self::event::Counts;
#[cfg(feature = "runtime")]
pub use self::layer::{MAX_WATCHED_DRIVERS, Monitored, Monitors};
pub use self::request::pod_uid;
