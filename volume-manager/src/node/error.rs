//! Errors of the operations on volumes, one type for each.

use std::path::PathBuf;
use std::time::Duration;

use csi_proto::DriverName;

use super::explanation::{CallFailure, Explanation};
use crate::excerpt::excerpt;
use crate::mounts::TableError;
use crate::name::{ConsumerId, VolumeKey};
use crate::store::{BootIdError, StoreError};

/// The reason why a volume was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The driver returned an error that will not resolve by itself.
    ///
    /// The volume stays wanted: the call is retried, with back-off, until `unpublish` is called.
    #[error("{key} is not published for {consumer}: {error}; retrying until it is unpublished")]
    Failed {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
        /// The driver's error.
        error: CallFailure,
    },
    /// The volume is in use with another spec.
    #[error("{key} is in use with another {field}; unpublish all its consumers before changing it")]
    SpecDiffers {
        /// The volume.
        key: VolumeKey,
        /// The field that differs.
        field: &'static str,
    },
    /// The consumer uses the volume with another target or other options.
    #[error("{consumer} uses {key} with another {field}; unpublish it first, or use another consumer id")]
    ConsumerDiffers {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
        /// The field that differs.
        field: &'static str,
    },
    /// The access mode allows one consumer, and the volume has one.
    #[error("{key} allows one consumer at a time and is used by {holder}; unpublish that one first")]
    Exclusive {
        /// The volume.
        key: VolumeKey,
        /// The current consumer.
        holder: ConsumerId,
    },
    /// Another volume or consumer uses the target.
    #[error("target {} is used by {holder} of {key}; use a separate target for each consumer", target.display())]
    TargetTaken {
        /// The path.
        target: PathBuf,
        /// The volume that uses the target.
        key: VolumeKey,
        /// The consumer that uses the target.
        holder: ConsumerId,
    },
    /// The driver's limit of volumes on a node, from NodeGetInfo, is reached.
    #[error(
        "driver {driver} allows at most {limit} volumes on this node ({found} in use); unpublish one first"
    )]
    AttachLimit {
        /// The driver.
        driver: DriverName,
        /// The number of the driver's volumes in use.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The driver's policy excludes volumes of this lifecycle mode.
    #[error("driver {driver} does not allow {mode} volumes; see its policy for the supported modes")]
    LifecycleMode {
        /// The driver.
        driver: DriverName,
        /// The requested mode.
        mode: &'static str,
    },
    /// The node's limit of volumes is reached.
    #[error("limit of {limit} volumes reached; remove some first")]
    TooManyVolumes {
        /// The limit.
        limit: usize,
    },
    /// The limit of consumers of a volume is reached.
    #[error("limit of {limit} consumers of {key} reached; remove one first")]
    TooManyConsumers {
        /// The volume.
        key: VolumeKey,
        /// The limit.
        limit: usize,
    },
    /// The spec is invalid.
    #[error("{key}: {reason}")]
    Invalid {
        /// The volume.
        key: VolumeKey,
        /// The violation, and what is expected.
        reason: String,
    },
    /// The record of the volume is unreadable, so its state is unknown.
    #[error("the record of {key} is quarantined ({reason}); inspect it, then release or remove it")]
    Quarantined {
        /// The volume.
        key: VolumeKey,
        /// The reason for the quarantine.
        reason: String,
    },
    /// The volume was unpublished while the request was pending.
    #[error("{key} was unpublished for {consumer} before it was published")]
    Released {
        /// The volume.
        key: VolumeKey,
        /// The consumer that was released.
        consumer: ConsumerId,
    },
    /// The time of [`publish_within`](super::Volumes::publish_within) is over. The volume stays wanted and continues.
    #[error("not published for {consumer} within {after:?}; {explanation}")]
    NotInTime {
        /// The consumer.
        consumer: ConsumerId,
        /// The longest wait.
        after: Duration,
        /// The state of the volume, and what it waits for.
        explanation: Box<Explanation>,
    },
    /// The store is unavailable, and the request was not accepted: retry.
    #[error(transparent)]
    Store(#[from] StoreUnavailable),
    /// The request was accepted and continues when it is on disk: repeat it to receive its result.
    #[error(transparent)]
    NotYetRecorded(#[from] NotYetRecorded),
    /// The volume manager has shut down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The reason why a volume was not unpublished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnpublishError {
    /// The driver returned a permanent error. The call is still retried, with back-off.
    #[error("{key} is not unpublished for {consumer}: {error}; retrying")]
    Failed {
        /// The volume.
        key: VolumeKey,
        /// The consumer of the target.
        consumer: ConsumerId,
        /// The driver's error.
        error: CallFailure,
    },
    /// The volume was published again while the request was pending.
    #[error("{key} was published again for {consumer} before it was unpublished")]
    Wanted {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
    },
    /// The record of the volume is unreadable, so its state is unknown.
    #[error("the record of {key} is quarantined ({reason}); inspect it, then release or remove it")]
    Quarantined {
        /// The volume.
        key: VolumeKey,
        /// The reason for the quarantine.
        reason: String,
    },
    /// The store is unavailable, and the request was not accepted: retry.
    #[error(transparent)]
    Store(#[from] StoreUnavailable),
    /// The request was accepted and continues when it is on disk: repeat it to receive its result.
    #[error(transparent)]
    NotYetRecorded(#[from] NotYetRecorded),
    /// The volume manager has shut down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The reason why a volume was not expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpandError {
    /// The volume is unknown.
    #[error("{key} is not known on this node; publish it first")]
    Unknown {
        /// The volume.
        key: VolumeKey,
    },
    /// The requested size is smaller than an earlier one.
    #[error("requested {asked} bytes for {key}, which has {found}; a volume cannot shrink")]
    Shrink {
        /// The volume.
        key: VolumeKey,
        /// The current size in bytes.
        found: u64,
        /// The requested size in bytes.
        asked: u64,
    },
    /// The size is out of range.
    #[error("invalid size {found}; expected 1..={} bytes", i64::MAX)]
    Size {
        /// The requested size in bytes.
        found: u64,
    },
    /// The driver has not connected since the volumes were opened, so its capabilities are unknown.
    #[error("driver {driver} has not connected; retry when it is registered")]
    NoDriver {
        /// The driver.
        driver: DriverName,
    },
    /// The driver supports neither phase of an expansion.
    #[error("driver {driver} has no EXPAND_VOLUME capability; expand the volume by other means")]
    Unsupported {
        /// The driver.
        driver: DriverName,
    },
    /// The driver returned a permanent error.
    #[error("{key} was not expanded: {error}; request another size, or retry when it is not in use")]
    Failed {
        /// The volume.
        key: VolumeKey,
        /// The driver's error.
        error: CallFailure,
    },
    /// The store is unavailable, and the request was not accepted: retry.
    #[error(transparent)]
    Store(#[from] StoreUnavailable),
    /// The request was accepted and continues when it is on disk: repeat it to receive its result.
    #[error(transparent)]
    NotYetRecorded(#[from] NotYetRecorded),
    /// The volume manager has shut down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The reason why a query about a volume failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The volume is unknown.
    #[error("{key} is not known on this node; publish it first")]
    Unknown {
        /// The volume.
        key: VolumeKey,
    },
    /// The volume has no path to query.
    #[error("{key} is {state}; retry when it is staged or published")]
    NotMounted {
        /// The volume.
        key: VolumeKey,
        /// The state of the volume.
        state: String,
    },
    /// The driver is not registered or not connected.
    #[error("driver {driver} is not connected; retry when it is connected")]
    NoDriver {
        /// The driver.
        driver: DriverName,
    },
    /// Too many queries of the volume are pending.
    #[error("too many pending queries of {key}; retry later")]
    Busy {
        /// The volume.
        key: VolumeKey,
    },
    /// The driver does not support the query.
    #[error("driver {driver} does not have the capability {capability}")]
    Unsupported {
        /// The driver.
        driver: DriverName,
        /// The missing capability.
        capability: &'static str,
    },
    /// The driver returned an error.
    #[error("driver {driver}: {message}")]
    Failed {
        /// The driver.
        driver: DriverName,
        /// The text of the error.
        message: String,
    },
    /// The volume manager has shut down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The reason why a desired set was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// A volume is in the set twice.
    #[error("{key} is in the desired set twice; list it once, with all its consumers")]
    Twice {
        /// The volume.
        key: VolumeKey,
    },
    /// The set is not on disk, or only in part: retry.
    #[error(transparent)]
    Store(#[from] StoreUnavailable),
    /// The volume manager has shut down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The reason why an external attach or detach was not recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The publish context is invalid.
    #[error("{key}: {reason}")]
    Invalid {
        /// The volume.
        key: VolumeKey,
        /// The violation, and what is expected.
        reason: String,
    },
    /// The request is not on disk: retry.
    #[error(transparent)]
    Store(#[from] StoreUnavailable),
    /// The volume manager has shut down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The store failed while it wrote the record. Unlike after [`StoreUnavailable`], the request stays in memory and
/// continues when the record is on disk; a crash before that loses it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the record is not on disk yet ({reason}); the request continues when it is, and a crash before that loses it"
)]
#[non_exhaustive]
pub struct NotYetRecorded {
    /// The text of the store's error.
    pub reason: String,
}

/// The store does not accept records, so no call is made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable ({reason}) and is being reopened; retry later")]
#[non_exhaustive]
pub struct StoreUnavailable {
    /// The text of the store's error.
    pub reason: String,
}

/// The future that runs the volumes has ended or was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the volume manager has shut down; recorded requests continue when it is opened again")]
#[non_exhaustive]
pub struct Closed;

/// The reason why the volumes of a node could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenVolumesError {
    /// The root is not absolute.
    #[error("invalid staging root {}; expected an absolute path", root.display())]
    Root {
        /// The configured path.
        root: PathBuf,
    },
    /// The store cannot be read. Single unreadable records do not cause this error.
    #[error("the store cannot be read")]
    Store(#[source] StoreError),
    /// The boot id cannot be read.
    #[error("the boot id cannot be read")]
    Boot(#[source] BootIdError),
    /// The mount table cannot be read.
    #[error("the mount table cannot be read")]
    Mounts(#[source] TableError),
    /// A task that read from disk panicked, or the runtime shut down.
    #[error("a task that reads from disk failed")]
    Task(#[source] std::io::Error),
}

/// The maximum length of a driver's text in bytes; longer ones are cut.
pub(super) const MAX_MESSAGE_BYTES: usize = 512;

/// Returns the text, cut at [`MAX_MESSAGE_BYTES`], without control characters.
pub(super) fn bounded(text: &str) -> String {
    excerpt(text, MAX_MESSAGE_BYTES)
}

/// Rounds a duration for display: whole milliseconds below ten seconds, whole seconds above.
pub(super) fn rounded(time: Duration) -> Duration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if millis < 10_000 { Duration::from_millis(millis) } else { Duration::from_secs(millis.div_ceil(1000)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_texts_of_drivers_at_a_character_boundary() {
        assert_eq!(bounded("a\nb"), "a b");
        let long = "ä".repeat(MAX_MESSAGE_BYTES);
        let cut = bounded(&long);
        assert!(cut.ends_with('…') && cut.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8());
        assert_eq!(rounded(Duration::from_nanos(1_500_000)), Duration::from_millis(1));
        assert_eq!(rounded(Duration::from_millis(10_001)), Duration::from_secs(11));
    }
}
