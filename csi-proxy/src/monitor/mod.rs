//! Whether an orchestrator keeps its side of the spec: a watch over the calls that it makes to a driver.
//!
//! CSI lays down in which order an orchestrator makes its calls, and what it may do after one that failed. A driver is not
//! obliged to notice when that goes wrong; volumes leak, or data is lost, later and elsewhere. [`Monitor`] looks at each call
//! and at its end, and names the [`Rule`] that was broken. It changes nothing and refuses nothing.
//!
//! It judges by what the orchestrator knows, which is the code that it was answered:
//!
//! - OK counts. A call upward (attach, stage, publish) that ended with one of the codes that say "maybe still running", or that
//!   its caller left, may be repeated or undone; with any other code it counts as if it had not been made.
//! - A call downward (unpublish, unstage, detach) that did not end with OK may only be repeated. After NOT_FOUND and
//!   UNIMPLEMENTED it is for the orchestrator to find out what is there, so nothing is known here.
//! - What has happened before the first call that was seen is not known, unless [`Before::Nothing`] says so, and nothing that
//!   may have happened then is held against anybody. The same goes for what was forgotten ([`Limits`]). Of a volume that was seen
//!   to be made all is known.
//!
//! Secrets are not looked at, and nothing of a request is kept but the ids and paths that it is about and a
//! [`Digest`](crate::dispatcher::operation::Digest).
//!
//! ```
//! use std::time::Instant;
//!
//! use csi_proto::Method;
//! use csi_proto::csi::v1::NodeUnstageVolumeRequest;
//! use csi_proto::csi::v1::NodePublishVolumeRequest;
//! use csi_proxy::Code;
//! use csi_proxy::monitor::{Before, CallNumber, End, Event, Limits, Monitor, Rule};
//! use prost::Message as _;
//!
//! let mut monitor = Monitor::new(Limits::default(), Before::Unknown);
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
//!
//! `Monitored` (feature `runtime`) is a relay that does this for the calls that it hands on.

mod core;
mod duty;
mod event;
#[cfg(feature = "runtime")]
mod layer;
mod request;
mod rule;
#[cfg(test)]
mod tests;
mod volume;

pub use self::core::Monitor;
pub use self::event::{Before, CallNumber, Counts, End, Event, Limits};
#[cfg(feature = "runtime")]
pub use self::layer::{MAX_WATCHED_DRIVERS, Monitored, Monitors};
pub use self::rule::{Rule, Violation};
