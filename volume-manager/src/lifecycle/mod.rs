//! The lifecycle of one volume with all its consumers: a state machine with one transition function.
//!
//! ```text
//!           ControllerPublish        NodeStage         NodePublish
//!  CREATED ------------------> NODE_READY ------> VOL_READY ------> PUBLISHED      up
//!          <------------------            <------           <------                down
//!          ControllerUnpublish       NodeUnstage      NodeUnpublish
//! ```
//!
//! A volume is attached and staged once ([`Base`]), and published once for each consumer ([`Target`]). The consumers
//! are the reference count and are on disk. A driver without `PUBLISH_UNPUBLISH_VOLUME` has no NODE_READY, and a driver
//! without `STAGE_UNSTAGE_VOLUME` has no VOL_READY, unless it had the capability when the volume reached that state.
//! The spec draws these variants as figures 5 to 8 (section "Volume Lifecycle"). [`Attach`] determines the initial
//! state.
//!
//! While a call is in flight, and until the call is known to have succeeded, the volume or target is in the call's
//! transitional state. The transitional state is on disk, so a crash loses nothing. Which call may follow a call
//! that failed, or whose outcome is unknown, depends on the call's direction:
//!
//! | Call | higher state desired | lower state desired |
//! |---|---|---|
//! | upward | the same call again | the opposite call |
//! | downward | the same call again until OK, then upward | the same call again |
//!
//! The next call also depends on whether the last call may still be running in the driver. A call with an unknown
//! outcome is repeated, desired or not, before any other call is sent for the volume. A restart of the driver or a
//! reboot of the node ends the uncertainty, and [`Policy::quiesce_attempts`] bounds it. `ControllerExpandVolume`
//! delays only the other controller calls, so a volume can be published and unpublished while the controller is
//! unreachable. A call that was not sent ([`Failure::NotSent`]) changes nothing.
//!
//! The table of transitions is in `transitions`: towards a goal, on success and on failure.
//!
//! A call includes its verification: an OK counts only if the mount table agrees ([`Failure::Contradicted`]), and a
//! volume is not unstaged while another mount uses its staging path ([`Failure::InUse`]).
//!
//! [`Volume::step`] performs no I/O. The caller performs the effects in order and reports their results. An effect
//! is requested only after the record that it depends on is on disk: [`Effect::Record`] is the last effect of its
//! list, and the call follows [`Event::Recorded`].
//!
//! ```
//! use volume_manager::ConsumerId;
//! use volume_manager::advanced::lifecycle::{Call, Completed, DriverCapabilities, Effect, Event, Outcome, Policy, Volume};
//! use volume_manager::driver::Attach;
//! use volume_manager::node::Rpc;
//!
//! let capabilities = DriverCapabilities::default(); // this driver only publishes
//! let mut volume = Volume::new(Attach::NotRequired, capabilities, Policy::default());
//! let mut step = |event| {
//!     let mut effects = Vec::new();
//!     volume.step(event, &mut effects);
//!     effects
//! };
//! let pod = ConsumerId::new("pod-1")?;
//! let call = Call::of_target(Rpc::NodePublishVolume, pod.clone());
//!
//! assert_eq!(step(Event::Want(pod.clone())), [Effect::Record]);
//! assert_eq!(step(Event::Recorded(true)), [Effect::Call(call.clone())]);
//! assert_eq!(step(Event::Finished { call, outcome: Outcome::Ok }), [Effect::Record]);
//! assert_eq!(step(Event::Recorded(true)), [Effect::Completed(Completed::Published(pod))]);
//! # Ok::<(), volume_manager::InvalidConsumerId>(())
//! ```

mod call;
mod event;
mod expansion;
mod finish;
mod outcome;
mod plan;
mod snapshot;
mod state;
mod step;
mod transitions;
mod volume;

#[cfg(doc)]
use crate::backoff::BackOff;
pub use call::Call;
pub use event::{Completed, Effect, Event, LostMount, RejectReason, Waiter};
pub use outcome::{Failure, Mismatch, Outcome, outcome_of};
pub use snapshot::{Base, Expansion, ExpansionPhase, Snapshot, Target, TargetState};
pub use state::{Direction, Rpc, VolumeState};
pub use volume::{Attach, DriverCapabilities, FailedCall, Policy, Volume, WaitReason};
