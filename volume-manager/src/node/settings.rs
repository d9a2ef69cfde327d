//! Settings of the volumes of a node.

use std::path::PathBuf;
use std::time::Duration;

use crate::backoff::BackOff;

/// The first delay before a failed store is reopened; each further one is twice as long.
pub(super) const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// The longest delay before a failed store is reopened, and the delay before a rejected record is written again.
pub(super) const LONGEST_REOPEN_INTERVAL: Duration = Duration::from_secs(60);

/// The settings of a volume manager. All but the root have defaults for a small node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VolumeSettings {
    pub(super) root: PathBuf,
    pub(super) calls_per_driver: usize,
    pub(super) back_off: BackOff,
    pub(super) republish_interval: Duration,
    pub(super) mount_check_interval: Duration,
    pub(super) inspect_interval: Duration,
    pub(super) require_mounted_targets: bool,
    pub(super) caller_applies_fs_group: bool,
    pub(super) jitter_seed: u64,
}

impl VolumeSettings {
    /// Creates settings with `root` as the directory for staging.
    ///
    /// The root must be absolute. The staging path of a volume is `ROOT/DRIVER/NAME/staging`, with a NAME of 32 digits.
    /// A root of less than 30 bytes keeps every path within the 128 bytes that all drivers accept (spec,
    /// NodeStageVolume).
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            calls_per_driver: 16,
            back_off: BackOff::default(),
            republish_interval: Duration::from_secs(60),
            mount_check_interval: Duration::from_millis(200),
            inspect_interval: Duration::from_secs(30),
            require_mounted_targets: true,
            caller_applies_fs_group: false,
            jitter_seed: 0,
        }
    }

    /// Sets the maximum number of concurrent calls to one driver, at least 1. Default: 16.
    ///
    /// A hung driver blocks only this many of its own calls and no calls to other drivers.
    #[must_use]
    pub fn calls_per_driver(mut self, calls: usize) -> Self {
        self.calls_per_driver = calls.max(1);
        self
    }

    /// Sets the back-off of failed calls. Default: [`BackOff::default`], 0.5 s to 2 min.
    #[must_use]
    pub fn back_off(mut self, back_off: BackOff) -> Self {
        self.back_off = back_off;
        self
    }

    /// Sets the interval of republish calls for drivers with `requiresRepublish`, at least 1 s. Default: 60 s.
    #[must_use]
    pub fn republish_interval(mut self, interval: Duration) -> Self {
        self.republish_interval = interval.max(Duration::from_secs(1));
        self
    }

    /// Sets the minimum interval between reads of the mount table after changes. Default: 200 ms.
    ///
    /// A lost mount is detected within this interval.
    #[must_use]
    pub fn mount_check_interval(mut self, interval: Duration) -> Self {
        self.mount_check_interval = interval;
        self
    }

    /// Sets whether the target of a published file system volume must be a mount. Default: yes.
    ///
    /// The spec does not require a mount. By default a driver that fills a plain directory is rejected, because it
    /// cannot be distinguished from a driver that did nothing. The data in a plain directory is on the node's own
    /// disk.
    #[must_use]
    pub fn require_mounted_targets(mut self, required: bool) -> Self {
        self.require_mounted_targets = required;
        self
    }

    /// Sets the interval of inspections of mounts whose server can die without a change of the mount table (FUSE), at
    /// least 1 s. Default: 30 s.
    #[must_use]
    pub fn inspect_interval(mut self, interval: Duration) -> Self {
        self.inspect_interval = interval.max(Duration::from_secs(1));
        self
    }

    /// Sets whether the caller applies fsGroup where the driver cannot. Default: no, and the explanation lists each
    /// consumer whose fsGroup is not applied.
    #[must_use]
    pub fn caller_applies_fs_group(mut self, applies: bool) -> Self {
        self.caller_applies_fs_group = applies;
        self
    }

    /// Sets the seed of the jitter, which should differ between nodes. Default: 0.
    #[must_use]
    pub fn jitter_seed(mut self, seed: u64) -> Self {
        self.jitter_seed = seed;
        self
    }
}
