//! Why an operation on a volume failed: one type for each.

use std::path::PathBuf;
use std::time::Duration;

use csi_proto::DriverName;

use super::explanation::CallFailure;
use crate::excerpt::excerpt;
use crate::mounts::TableError;
use crate::name::{ConsumerId, VolumeKey};
use crate::store::StoreError;
use crate::store::boot::BootIdError;

/// Why a volume is not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A driver that answered, and whose answer will not change by itself.
    ///
    /// The want stands: the call is tried again, with growing waits, until `unpublish` is called.
    #[error("{key} is not published for {consumer}: {error}; it is tried again until it is unpublished")]
    Failed {
        /// The volume.
        key: VolumeKey,
        /// Who wants it.
        consumer: ConsumerId,
        /// What the driver said.
        error: CallFailure,
    },
    /// The volume is known under another description.
    #[error(
        "{key} is in use with another {field}; unpublish all its consumers before it is used differently"
    )]
    SpecDiffers {
        /// The volume.
        key: VolumeKey,
        /// What differs.
        field: &'static str,
    },
    /// The consumer has the volume at another target, or otherwise.
    #[error("{consumer} has {key} with another {field}; unpublish it first, or use another consumer id")]
    ConsumerDiffers {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
        /// What differs.
        field: &'static str,
    },
    /// The access mode allows one consumer, and there is one.
    #[error("{key} may have one consumer at a time, and {holder} has it; unpublish that one first")]
    Exclusive {
        /// The volume.
        key: VolumeKey,
        /// Who has it.
        holder: ConsumerId,
    },
    /// Something else is published, or on its way, at the target.
    #[error("target {} belongs to {holder} of {key}; give each consumer a target of its own", target.display())]
    TargetTaken {
        /// The path.
        target: PathBuf,
        /// The volume that has it.
        key: VolumeKey,
        /// The consumer that has it.
        holder: ConsumerId,
    },
    /// The driver's limit of volumes on a node, from NodeGetInfo, is reached.
    #[error("{driver} takes {limit} volumes on this node, and {found} are in use; unpublish one first")]
    AttachLimit {
        /// The driver.
        driver: DriverName,
        /// How many volumes of it are in use.
        found: u64,
        /// How many it takes.
        limit: u64,
    },
    /// The driver does not do volumes of this kind of life.
    #[error("{driver} does not allow {mode} volumes; its policy lists the modes that it has")]
    LifecycleMode {
        /// The driver.
        driver: DriverName,
        /// The mode that is asked for.
        mode: &'static str,
    },
    /// As many volumes as a node may have are looked after.
    #[error("{limit} volumes are looked after, which is the limit; remove some first")]
    TooManyVolumes {
        /// The bound.
        limit: usize,
    },
    /// The volume has as many consumers as one may have.
    #[error("{key} has {limit} consumers, which is the limit; remove one first")]
    TooManyConsumers {
        /// The volume.
        key: VolumeKey,
        /// The bound.
        limit: usize,
    },
    /// A description that no driver could be asked for.
    #[error("{key}: {reason}")]
    Invalid {
        /// The volume.
        key: VolumeKey,
        /// What is wrong, and what is expected.
        reason: String,
    },
    /// The record of the volume cannot be read, so nothing is known of what was done to it.
    #[error("the record of {key} is quarantined ({reason}); look at it, then release or remove it")]
    Quarantined {
        /// The volume.
        key: VolumeKey,
        /// Why.
        reason: String,
    },
    /// It was unpublished while it was waited for.
    #[error("{key} was unpublished for {consumer} before it was published")]
    Released {
        /// The volume.
        key: VolumeKey,
        /// Who does not want it any more.
        consumer: ConsumerId,
    },
    /// The store takes no records, so nothing was taken in: ask again.
    #[error(transparent)]
    Store(#[from] StoreTrouble),
    /// It is taken in, and goes on when it is on disk: ask again to hear of its end.
    #[error(transparent)]
    NotYetRecorded(#[from] NotYetRecorded),
    /// Nobody runs the volumes.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a volume is not unpublished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnpublishError {
    /// The driver says that it never will. It is tried again, with growing waits, all the same.
    #[error("{key} is not unpublished for {consumer}: {error}; it is tried again")]
    Failed {
        /// The volume.
        key: VolumeKey,
        /// Whose target it is.
        consumer: ConsumerId,
        /// What the driver said.
        error: CallFailure,
    },
    /// It was published again while it was waited for.
    #[error("{key} was published again for {consumer} before it was unpublished")]
    Wanted {
        /// The volume.
        key: VolumeKey,
        /// Who wants it again.
        consumer: ConsumerId,
    },
    /// The record of the volume cannot be read, so nothing is known of what was done to it.
    #[error("the record of {key} is quarantined ({reason}); look at it, then release or remove it")]
    Quarantined {
        /// The volume.
        key: VolumeKey,
        /// Why.
        reason: String,
    },
    /// The store takes no records, so nothing was taken in: ask again.
    #[error(transparent)]
    Store(#[from] StoreTrouble),
    /// It is taken in, and goes on when it is on disk: ask again to hear of its end.
    #[error(transparent)]
    NotYetRecorded(#[from] NotYetRecorded),
    /// Nobody runs the volumes.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a volume does not grow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpandError {
    /// No such volume is looked after.
    #[error("{key} is not known on this node; publish it first")]
    Unknown {
        /// The volume.
        key: VolumeKey,
    },
    /// Volumes never get smaller.
    #[error("{key} has {found} bytes, and {asked} are asked for; a volume never gets smaller")]
    Shrink {
        /// The volume.
        key: VolumeKey,
        /// Its size, in bytes.
        found: u64,
        /// The size that is asked for, in bytes.
        asked: u64,
    },
    /// A size that cannot be asked for.
    #[error("{found} bytes are no size; ask for 1 to {} bytes", i64::MAX)]
    Size {
        /// What was asked for, in bytes.
        found: u64,
    },
    /// The driver has not been there since the volumes were opened, so it is not known what it can do.
    #[error("{driver} is not there; ask when it has registered")]
    NoDriver {
        /// The driver.
        driver: DriverName,
    },
    /// The driver has neither half of the expansion.
    #[error("{driver} has no EXPAND_VOLUME capability; grow the volume by other means")]
    Unsupported {
        /// The driver.
        driver: DriverName,
    },
    /// The driver's answer is final.
    #[error("{key} does not grow: {error}; ask for another size, or when it is not in use")]
    Failed {
        /// The volume.
        key: VolumeKey,
        /// What the driver said.
        error: CallFailure,
    },
    /// The store takes no records, so nothing was taken in: ask again.
    #[error(transparent)]
    Store(#[from] StoreTrouble),
    /// It is taken in, and goes on when it is on disk: ask again to hear of its end.
    #[error(transparent)]
    NotYetRecorded(#[from] NotYetRecorded),
    /// Nobody runs the volumes.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a volume's figures are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// No such volume is looked after.
    #[error("{key} is not known on this node; publish it first")]
    Unknown {
        /// The volume.
        key: VolumeKey,
    },
    /// There is no path to ask the driver about.
    #[error("{key} is {state} and neither staged nor published; ask when it is")]
    NotMounted {
        /// The volume.
        key: VolumeKey,
        /// The state that it is in.
        state: String,
    },
    /// The driver is not registered, or its connection is down.
    #[error("{driver} is not there; it is asked when it registers")]
    NoDriver {
        /// The driver.
        driver: DriverName,
    },
    /// Too many questions about the volume wait already.
    #[error("too many questions about {key} wait for an answer; ask again later")]
    Busy {
        /// The volume.
        key: VolumeKey,
    },
    /// The driver has no such call.
    #[error("{driver} does not have the capability {capability}")]
    Unsupported {
        /// The driver.
        driver: DriverName,
        /// What it would need.
        capability: &'static str,
    },
    /// The driver's answer.
    #[error("{driver}: {message}")]
    Failed {
        /// The driver.
        driver: DriverName,
        /// What it said.
        message: String,
    },
    /// Nobody runs the volumes.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a desired set is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// One volume is in the set twice.
    #[error("{key} is in the desired set twice; give it once, with all its consumers")]
    Twice {
        /// The volume.
        key: VolumeKey,
    },
    /// The set is not on disk. Some of it may be: hand it in again.
    #[error(transparent)]
    Store(#[from] StoreTrouble),
    /// Nobody runs the volumes.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why it is not noted that a volume was attached or detached by others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// A publish context that no driver could be given.
    #[error("{key}: {reason}")]
    Invalid {
        /// The volume.
        key: VolumeKey,
        /// What is wrong, and what is expected.
        reason: String,
    },
    /// It is not on disk: say it again.
    #[error(transparent)]
    Store(#[from] StoreTrouble),
    /// Nobody runs the volumes.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The store failed while it took the record. Unlike after a [`StoreTrouble`], what was asked for is kept in memory, and
/// goes on when the record is on disk; a crash before that loses it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the record is not on disk yet ({reason}), so nothing is begun; it goes on when it is, and a crash may lose it"
)]
#[non_exhaustive]
pub struct NotYetRecorded {
    /// What the store said.
    pub reason: String,
}

/// The store takes no intents, so no call is made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store takes no records ({reason}), so nothing is begun; it is opened again by itself, ask then")]
#[non_exhaustive]
pub struct StoreTrouble {
    /// What the store said.
    pub reason: String,
}

/// The future that runs the volumes has ended or was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the volumes are not run any more; whatever was recorded goes on when they are opened again")]
#[non_exhaustive]
pub struct Stopped;

/// Why the volumes of a node are not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The root is not absolute.
    #[error("staging root {}: it must be an absolute path", root.display())]
    Root {
        /// The path that was set.
        root: PathBuf,
    },
    /// The store cannot be read at all. Single bad records are no such case.
    #[error("the store cannot be read")]
    Store(#[source] StoreError),
    /// It is not known which boot this is.
    #[error("the id of this boot cannot be read")]
    Boot(#[source] BootIdError),
    /// The mount table cannot be read.
    #[error("the mount table cannot be read")]
    Mounts(#[source] TableError),
    /// A task that read from the disk has panicked, or the runtime shut down.
    #[error("a task that read from the disk did not end")]
    Task(#[source] std::io::Error),
}

/// How long a text from a driver may be before it is cut, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 512;

/// The text, cut at [`MAX_MESSAGE_BYTES`], without control characters.
pub(super) fn bounded(text: &str) -> String {
    excerpt(text, MAX_MESSAGE_BYTES)
}

/// A time as people read it: whole milliseconds below ten seconds, whole seconds above.
pub(super) fn rounded(time: Duration) -> Duration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if millis < 10_000 { Duration::from_millis(millis) } else { Duration::from_secs(millis.div_ceil(1000)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_text_is_cut_at_a_character_and_stays_on_one_line() {
        assert_eq!(bounded("a\nb"), "a b");
        let long = "ä".repeat(MAX_MESSAGE_BYTES);
        let cut = bounded(&long);
        assert!(cut.ends_with('…') && cut.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8());
        assert_eq!(rounded(Duration::from_nanos(1_500_000)), Duration::from_millis(1));
        assert_eq!(rounded(Duration::from_millis(10_001)), Duration::from_secs(11));
    }
}
