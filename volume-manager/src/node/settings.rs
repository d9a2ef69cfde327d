//! What can be set for the volumes of a node.

use std::path::PathBuf;
use std::time::Duration;

use crate::lifecycle::BackOff;

/// The most volumes of a node. A node has a few hundred at most, and each takes a few KiB of memory; without a bound a caller
/// that names volumes without end would use it all.
pub(super) const MAX_VOLUMES: usize = 16_384;

/// The most consumers of one volume.
pub(super) const MAX_CONSUMERS: usize = 256;

/// The first wait before a store that failed is opened again; each further one is twice as long.
pub(super) const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// The longest wait before a store that failed is opened again, and that before a record that it did not take is written
/// again.
pub(super) const LONGEST_REOPEN_INTERVAL: Duration = Duration::from_secs(60);

/// What can be set. Everything but the root has a default that suits a small node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    pub(super) root: PathBuf,
    pub(super) calls_per_driver: usize,
    pub(super) back_off: BackOff,
    pub(super) republish_interval: Duration,
    pub(super) mount_check_interval: Duration,
    pub(super) inspect_interval: Duration,
    pub(super) targets_are_mounts: bool,
    pub(super) groups_given_by_caller: bool,
    pub(super) jitter_seed: u64,
}

impl Settings {
    /// Settings with `root` as the directory under which volumes are staged.
    ///
    /// It must be absolute. The staging path of a volume is `ROOT/DRIVER/NAME/staging`, with a NAME of 32 digits: keep
    /// the root under 30 bytes, and no path is longer than the 128 bytes that every driver takes (spec, NodeStageVolume).
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            calls_per_driver: 16,
            back_off: BackOff::default(),
            republish_interval: Duration::from_secs(60),
            mount_check_interval: Duration::from_millis(200),
            inspect_interval: Duration::from_secs(30),
            targets_are_mounts: true,
            groups_given_by_caller: false,
            jitter_seed: 0,
        }
    }

    /// How many calls to one driver may run at once, at least 1. Default: 16.
    ///
    /// A driver that hangs holds as many of its own calls, and none of another driver.
    #[must_use]
    pub fn calls_per_driver(mut self, calls: usize) -> Self {
        self.calls_per_driver = calls.max(1);
        self
    }

    /// How long to wait before a call that failed is made again. Default: [`BackOff::default`], 0.5 s to 2 min.
    #[must_use]
    pub fn back_off(mut self, back_off: BackOff) -> Self {
        self.back_off = back_off;
        self
    }

    /// How often published targets are called again for a driver whose policy says `requiresRepublish`, at least one
    /// second. Default: 60 s.
    #[must_use]
    pub fn republish_interval(mut self, interval: Duration) -> Self {
        self.republish_interval = interval.max(Duration::from_secs(1));
        self
    }

    /// The least time between two readings of the mount table after changes in it. Default: 200 ms.
    ///
    /// A lost mount is noticed within it.
    #[must_use]
    pub fn mount_check_interval(mut self, interval: Duration) -> Self {
        self.mount_check_interval = interval;
        self
    }

    /// Whether a published file system volume must be a mount at its target. Default: yes.
    ///
    /// The spec does not ask it of a driver; one that fills a plain directory instead is refused by default, since that
    /// cannot be told from a driver that did nothing. The data then lands on the node's own disk.
    #[must_use]
    pub fn targets_are_mounts(mut self, required: bool) -> Self {
        self.targets_are_mounts = required;
        self
    }

    /// How often a mount is looked at whose server can die without the mount table showing it (FUSE), at least one
    /// second. Default: 30 s.
    #[must_use]
    pub fn inspect_interval(mut self, interval: Duration) -> Self {
        self.inspect_interval = interval.max(Duration::from_secs(1));
        self
    }

    /// Whether whoever asks for a volume gives its files to the group that was asked for, where the driver cannot. Default: no,
    /// and an explanation says of each consumer that it is not done.
    #[must_use]
    pub fn groups_given_by_caller(mut self, given: bool) -> Self {
        self.groups_given_by_caller = given;
        self
    }

    /// A number that spreads the waits of this node apart from those of others. Default: 0.
    #[must_use]
    pub fn jitter_seed(mut self, seed: u64) -> Self {
        self.jitter_seed = seed;
        self
    }
}
