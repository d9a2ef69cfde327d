//! All volumes of a node: recorded, published, verified, and restored after every power loss.
//!
#![cfg_attr(
    feature = "runtime",
    doc = "[`Volumes`] is the handle, and [`Volumes::open`] creates it. An embedder opens the volumes, spawns their task and registers a driver; the
crate's front page has a complete example.
"
)]
//! Every request is on disk before any call is made for it. A publish request stays in effect, across crashes,
//! reboots and driver upgrades, until the consumer is unpublished. After a power loss all volumes are restored
//! from disk, without calls to any component other than the drivers.
//!
//! # Durable state
//!
//! Each volume has one record: its spec, its consumers and targets, the state of each step, the observed
//! mounts with their boot id, and the last error. A record contains references to secrets, never secrets. All
//! pending records share one commit. An unreadable record is kept, counted and explained, and does not affect
//! other volumes.
//!
//! Volumes are staged at `ROOT/DRIVER/NAME/staging`. NAME is a hash of the volume id with 32 digits, and is part of the
//! record; ids with the same hash get a suffix.
//!
//! # Verification
//!
//! An OK counts only if the mount table agrees: the expected mount at the expected path, once, read-only if requested;
//! or no mount after an unpublish or unstage. Before an unstage, no foreign mount may use the staging path. While
//! volumes are published, their mounts are watched; a lost mount is torn down in order and restored. A target that
//! contains foreign mounts or data is rejected before the first call for it. Directories are removed by
//! [`SafeRemoval`](crate::mounts::SafeRemoval) only.
//!
//! # Non-goals
//!
//! - Applying an fsGroup that the driver does not support (`fsGroup` without `VOLUME_MOUNT_GROUP`), which requires
//!   a walk over all files. [`Published`] and the [`Explanation`] report the fsGroup.
//! - Lazy unmounts, or unmounts other than the driver's.
//! - Fencing between nodes.
//!
//! # Metrics
//!
//! The feature `metrics` adds these metrics, through the `metrics` facade:
//!
//! | Name | Kind | Labels | What |
//! |---|---|---|---|
//! | `volume_manager_volumes` | gauge | `state` | volumes in a state |
//! | `volume_manager_uncertain_volumes` | gauge | | volumes with a call of unknown outcome |
//! | `volume_manager_quarantined_records` | gauge | | unreadable records |
//! | `volume_manager_calls_in_flight` | gauge | | calls in flight |
//! | `volume_manager_state_duration_seconds` | histogram | `state` | time in a state, recorded when it is left |
//! | `volume_manager_rpc_seconds` | histogram | `driver`, `rpc`, `code` | duration of a call, with directory creation |
//! | `volume_manager_commit_seconds` | histogram | `outcome` | duration of a commit, including its sync |
//! | `volume_manager_commit_records` | histogram | | records in one commit |
//!
//! The label `code` is `OK`, the number of the code, or `none`.
//!
//! Gauges are updated every few seconds while there is activity. Each call has a span `call` with `volume`, `driver`
//! and `rpc`.

pub(crate) mod core;

mod change;
mod desired;
mod error;
mod explanation;
pub(crate) mod record;
mod settings;
mod staging;

#[cfg(feature = "runtime")]
pub(crate) mod connector;
#[cfg(feature = "runtime")]
mod executor;
#[cfg(feature = "runtime")]
mod metrics;
#[cfg(feature = "runtime")]
mod open;
#[cfg(feature = "runtime")]
mod run;
#[cfg(feature = "runtime")]
mod store_worker;
#[cfg(feature = "runtime")]
mod volumes;
#[cfg(feature = "runtime")]
mod watch;

pub use self::core::{Counts, KnownDriver};
pub use crate::backoff::BackOff;
pub use crate::lifecycle::{Failure, Mismatch, Rpc, VolumeState};
pub use change::{ChangeKind, VolumeChange};
pub use desired::{DesiredVolume, Published, Reconciled};
pub use error::{
    AttachError, Closed, ExpandError, InspectError, NotYetRecorded, OpenVolumesError, PublishError,
    ReconcileError, StoreUnavailable, UnpublishError,
};
pub use explanation::{CallFailure, ConsumerStatus, Explanation, Waiting};
pub use record::KIND as RECORD_KIND;
pub use settings::VolumeSettings;

#[cfg(feature = "runtime")]
pub use open::Parts;
#[cfg(feature = "runtime")]
pub use volumes::Volumes;
#[cfg(feature = "runtime")]
pub use watch::{Changes, WatchEvent};
