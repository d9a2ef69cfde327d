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
//! ([`Outcome::NotSent`]) changes nothing.
//!
//! An OK counts when the mount table agrees ([`Check::After`]), and nothing is unstaged that somebody else uses
//! ([`Check::Unused`]).
//!
//! [`step`] does nothing but decide. Its caller performs the effects in their order and sends back how they end. What
//! an effect needs to be on disk is there before that effect is asked for: a [`Effect::Record`] is the last of its
//! list, and the call comes after [`Event::Recorded`].
//!
//! ```
//! use volume_manager::ConsumerId;
//! use volume_manager::lifecycle::{
//!     Call, Check, DriverCapabilities, Effect, Event, Finding, Attach, Outcome, Policy, Reached, Rpc, Volume, step,
//! };
//!
//! let capabilities = DriverCapabilities::default(); // this driver only publishes
//! let volume = Volume::new(Attach::NotRequired, capabilities, Policy::default());
//! let pod = ConsumerId::new("pod-1")?;
//! let publish = Call::of_target(Rpc::NodePublishVolume, pod.clone());
//!
//! let (volume, effects) = step(&volume, Event::Want(pod.clone()));
//! assert_eq!(effects, [Effect::Record]);
//! let (volume, effects) = step(&volume, Event::Recorded(true));
//! assert_eq!(effects, [Effect::Call(publish.clone())]);
//! let (volume, effects) = step(&volume, Event::Finished { call: publish.clone(), outcome: Outcome::Ok });
//! let check = Check::After(publish);
//! assert_eq!(effects, [Effect::Check(check.clone())]);
//! let (volume, effects) = step(&volume, Event::Checked { check, finding: Finding::Agrees });
//! assert_eq!(effects, [Effect::Record]);
//! let (_, effects) = step(&volume, Event::Recorded(true));
//! assert_eq!(effects, [Effect::Reached(Reached::Published(pod))]);
//! # Ok::<(), volume_manager::name::InvalidConsumerId>(())
//! ```

mod backoff;
mod call;
mod event;
mod expansion;
mod finish;
mod ladder;
mod outcome;
mod plan;
mod snapshot;
mod state;
mod step;
mod volume;

pub use backoff::BackOff;
pub use call::{Call, Check, Finding};
pub use event::{Effect, Event, Lost, Reached, Refusal, Waiter};
pub use ladder::{Attach, DriverCapabilities};
pub use outcome::{Failure, Outcome, outcome_of};
pub use snapshot::{Base, Expansion, Half, Snapshot, Target, TargetState};
pub use state::{Direction, Goal, Rpc, VolumeState};
pub use step::step;
pub use volume::{Policy, Trouble, Volume, Waits};
