//! The states of one volume with all its consumers, and the one function that moves it.
//!
//! ```text
//!           ControllerPublish        NodeStage         NodePublish
//!  CREATED ------------------> NODE_READY ------> VOL_READY ------> PUBLISHED      up
//!          <------------------            <------           <------                down
//!          ControllerUnpublish       NodeUnstage      NodeUnpublish
//! ```
//!
//! A volume is attached and staged once ([`Base`]), and published once for each consumer ([`Target`]). The consumers are
//! the reference count, and on disk. A driver without `PUBLISH_UNPUBLISH_VOLUME` has no NODE_READY, one without
//! `STAGE_UNSTAGE_VOLUME` has no VOL_READY, unless it had when the volume was brought there; the spec draws these as figures 5 to 8 (section "Volume Lifecycle").
//! [`Attach`] says where the way begins.
//!
//! While a call is under way, and as long as its end is not known to be good, what it changes is in the call's own
//! state, on disk, so that nothing is forgotten in a crash. What may follow a call that failed, or whose end is not
//! known, depends on its direction:
//!
//! | Call | wanted above | wanted below |
//! |---|---|---|
//! | upward | the same call again | its negation |
//! | downward | the same call again, until OK; only then up | the same call again |
//!
//! And on whether it may still be running: a call whose end is not known is repeated until it is, wanted or not, before
//! anything else is sent for the volume. A new generation of the driver or a reboot ends that as well, and
//! [`Policy::quiesce_attempts`] bounds it. `ControllerExpandVolume` holds back the other calls of the controller only: a
//! volume is published and unpublished though the controller cannot be reached. A call that was not sent at all
//! ([`Failure::NotSent`]) changes nothing.
//!
//! All moves are in `transitions`, as a table: towards a goal, on success, on failure.
//!
//! A call and its verification are one: an OK counts when the mount table agrees ([`Failure::Contradicted`]), and nothing
//! is unstaged that somebody else uses ([`Failure::InUse`]).
//!
//! [`Volume::step`] does nothing but decide. Its caller performs the effects in their order and sends back how they end. What
//! an effect needs to be on disk is there before that effect is asked for: a [`Effect::Record`] is the last of its
//! list, and the call comes after [`Event::Recorded`].
//!
//! ```
//! use volume_manager::ConsumerId;
//! use volume_manager::lifecycle::{
//!     Attach, Call, DriverCapabilities, Effect, Event, Outcome, Policy, Reached, Rpc, Volume,
//! };
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
//! assert_eq!(step(Event::Recorded(true)), [Effect::Reached(Reached::Published(pod))]);
//! # Ok::<(), volume_manager::name::InvalidConsumerId>(())
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

pub use crate::backoff::BackOff;
pub use call::Call;
pub use event::{Effect, Event, Lost, Reached, Refusal, Waiter};
pub use outcome::{Failure, Mismatch, Outcome, outcome_of};
pub use snapshot::{Base, Expansion, Half, Snapshot, Target, TargetState};
pub use state::{Direction, Rpc, VolumeState};
pub use volume::{Attach, DriverCapabilities, Policy, Trouble, Volume, Waits};
