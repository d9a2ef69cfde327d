//! All volumes of a node: wanted, recorded, called for, checked, and brought back after every power cut.
//!
#![cfg_attr(
    feature = "runtime",
    doc = "[`Volumes`] is the handle, [`Volumes::open`] the beginning. Embedding it takes an open, a task and a driver; the front
page has it in full.
"
)]
//! What is asked for is on disk before anything is done about it. A consumer that is wanted stays wanted, over crashes,
//! reboots and driver upgrades, until it is unpublished. After a power cut everything comes back from what is on disk,
//! with no call to anybody but the drivers.
//!
//! [`core`] is the logic, pure; the rest performs what it says.
//!
//! # What is on disk
//!
//! A [`Record`] for each volume: what it is, who wants it where, how far each step is, what was seen mounted, which boot
//! that was, and the last error. Secrets are there as references only. Records of all volumes that wait share one
//! commit. A record that cannot be read is kept, counted and explained, and no other volume minds.
//!
//! Volumes are staged at `ROOT/DRIVER/NAME/staging`. NAME is a hash of the volume id, 32 digits, and part of the record;
//! ids that share one are told apart by a suffix.
//!
//! # What is checked
//!
//! A call that ended with OK counts when the mount table agrees: the right thing, at the right path, once, read-only if
//! it was asked for; or nothing, after an unpublish or unstage. Before an unstage, that nobody else binds what is
//! staged. While volumes are published, that their mounts stay; a lost one is taken down in order and made again.
//! A target where others have something mounted or kept is refused before the first call for it.
//! Directories go by [`SafeRemoval`](crate::mounts::SafeRemoval) only.
//!
//! # What is not done
//!
//! - Giving files to a group where the driver cannot (`fsGroup` without `VOLUME_MOUNT_GROUP`): told in [`Published`] and
//!   in the [`Explanation`], never done, since it means to walk over all files.
//! - A lazy unmount, or any unmount that is not the driver's.
//! - Fencing between nodes.
//!
//! # Figures
//!
//! With the feature `metrics`, through the `metrics` facade:
//!
//! | Name | Kind | Labels | What |
//! |---|---|---|---|
//! | `volume_manager_volumes` | gauge | `state` | volumes in a state |
//! | `volume_manager_uncertain_volumes` | gauge | | volumes with a call whose end is not known |
//! | `volume_manager_quarantined_records` | gauge | | records that cannot be read |
//! | `volume_manager_calls_in_flight` | gauge | | calls that run |
//! | `volume_manager_dwell_seconds` | histogram | `state` | how long a volume was in a state that it left |
//! | `volume_manager_rpc_seconds` | histogram | `driver`, `rpc`, `code` | how long a call took, with the directories before it; `code` is `OK`, the number, or `none` |
//! | `volume_manager_commit_seconds` | histogram | `outcome` | how long a commit took, its sync included |
//! | `volume_manager_commit_records` | histogram | | records in one commit |
//!
//! Gauges are set every few seconds while anything happens. Each call is in a span `call` with `volume`, `driver` and
//! `rpc`.

pub mod core;

mod change;
mod desired;
mod error;
mod explanation;
mod record;
mod settings;
mod staging;

#[cfg(feature = "runtime")]
mod errands;
#[cfg(feature = "runtime")]
mod journal;
#[cfg(feature = "runtime")]
mod link;
#[cfg(feature = "runtime")]
mod metrics;
#[cfg(feature = "runtime")]
mod open;
#[cfg(feature = "runtime")]
mod run;
#[cfg(feature = "runtime")]
mod volumes;
#[cfg(feature = "runtime")]
mod watch;

pub use change::{Change, ChangeKind};
pub use desired::{DesiredVolume, Published, Reconciled};
pub use error::{
    AttachError, ExpandError, InspectError, NotYetRecorded, OpenError, PublishError, ReconcileError, Stopped,
    StoreTrouble, UnpublishError,
};
pub use explanation::{CallFailure, Explanation, Holder, Waiting};
pub use record::{KIND as RECORD_KIND, Record, RecordError, RecordedConsumer, SCHEMA};
pub use settings::Settings;

#[cfg(feature = "runtime")]
pub use link::{Connection, Drivers};
#[cfg(feature = "runtime")]
pub use open::Parts;
#[cfg(feature = "runtime")]
pub use volumes::Volumes;
#[cfg(feature = "runtime")]
pub use watch::{Changes, Watched};
