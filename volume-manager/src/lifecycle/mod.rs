//! The states of one volume with one target, and the one function that moves it.
//!
//! ```text
//!           ControllerPublish        NodeStage         NodePublish
//!  CREATED ------------------> NODE_READY ------> VOL_READY ------> PUBLISHED      up
//!          <------------------            <------           <------                down
//!          ControllerUnpublish       NodeUnstage      NodeUnpublish
//! ```
//!
//! A driver without `PUBLISH_UNPUBLISH_VOLUME` has no NODE_READY, one without `STAGE_UNSTAGE_VOLUME` has no VOL_READY;
//! the spec draws these as figures 5 to 8 (section "Volume Lifecycle"). [`Floor`] says where the way begins.
//!
//! While a call is under way, and as long as its end is not known to be good, the volume is in the call's own state,
//! on disk, so that nothing is forgotten in a crash. What may follow a call that failed, or whose end is not known,
//! depends on its direction:
//!
//! | Call | wanted above | wanted below |
//! |---|---|---|
//! | upward | the same call again | its negation |
//! | downward | the same call again, until OK; only then up | the same call again |
//!
//! [`step`] does nothing but decide. Its caller performs the effects in their order and sends back how calls end:
//!
//! ```
//! use volume_manager::lifecycle::{DriverCapabilities, Effect, Event, Floor, Goal, Rpc, Volume, step};
//!
//! let capabilities = DriverCapabilities { publish_unpublish: false, stage_unstage: true };
//! let volume = Volume::new(Floor::Created, capabilities);
//!
//! let (volume, effects) = step(&volume, Event::Want(Goal::Published));
//! assert_eq!(effects, [Effect::Record, Effect::Call(Rpc::NodeStageVolume)]);
//! let (volume, effects) = step(&volume, Event::Finished { rpc: Rpc::NodeStageVolume, outcome: Ok(()) });
//! assert_eq!(effects, [Effect::Record, Effect::Call(Rpc::NodePublishVolume)]);
//! let (_, effects) = step(&volume, Event::Finished { rpc: Rpc::NodePublishVolume, outcome: Ok(()) });
//! assert_eq!(effects, [Effect::Record, Effect::Reached(Goal::Published)]);
//! ```

mod ladder;
mod state;
mod step;

pub use ladder::{DriverCapabilities, Floor};
pub use state::{Direction, Goal, Rpc, VolumeState};
pub use step::{Effect, Event, Failure, Volume, step};

#[cfg(test)]
mod tests;
