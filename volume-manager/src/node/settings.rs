//! What can be set for the volumes of a node.

use std::path::PathBuf;
use std::time::Duration;

use crate::lifecycle::{BackOff, Policy};

/// What can be set. Everything but the root has a default that suits a small node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    pub(super) root: PathBuf,
    pub(super) calls_per_driver: usize,
    pub(super) max_volumes: usize,
    pub(super) policy: Policy,
    pub(super) back_off: BackOff,
    pub(super) republish_interval: Duration,
    pub(super) reopen_interval: Duration,
    pub(super) longest_reopen_interval: Duration,
    pub(super) mount_check_interval: Duration,
    pub(super) inspect_interval: Duration,
    pub(super) targets_are_mounts: bool,
    pub(super) targets_on_staged_device: bool,
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
            max_volumes: 16_384,
            policy: Policy::default(),
            back_off: BackOff::default(),
            republish_interval: Duration::from_secs(60),
            reopen_interval: Duration::from_secs(1),
            longest_reopen_interval: Duration::from_secs(60),
            mount_check_interval: Duration::from_millis(200),
            inspect_interval: Duration::from_secs(30),
            targets_are_mounts: true,
            targets_on_staged_device: true,
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

    /// How many volumes are looked after at most. Default: 16,384.
    #[must_use]
    pub fn max_volumes(mut self, volumes: usize) -> Self {
        self.max_volumes = volumes;
        self
    }

    /// The bounds of each volume's machine, its most consumers among them. Default: [`Policy::default`].
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
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

    /// How long to wait before a store that failed is opened again: `first` for the first time, then twice as long
    /// each time, up to `longest`. Default: 1 s and 60 s.
    #[must_use]
    pub fn reopen_interval(mut self, first: Duration, longest: Duration) -> Self {
        self.reopen_interval = first.max(Duration::from_millis(1));
        self.longest_reopen_interval = longest.max(self.reopen_interval);
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

    /// Whether a target must be on the device that is mounted at the staging path, if one is. Default: yes.
    ///
    /// It is so for drivers that bind the one to the other, which is nearly all. Turn it off for one that publishes
    /// through a file system of its own, such as an overlay.
    #[must_use]
    pub fn targets_on_staged_device(mut self, required: bool) -> Self {
        self.targets_on_staged_device = required;
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
