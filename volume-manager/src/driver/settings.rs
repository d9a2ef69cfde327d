//! How long a driver may take.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_proto::Method;

/// The bounds of the calls to one driver. Each time is 1 ms to 1 h.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    pub(super) dial: Duration,
    pub(super) ready_within: Duration,
    pub(super) probe_interval: Duration,
    pub(super) call: Duration,
    pub(super) calls: BTreeMap<Method, Duration>,
    pub(super) secrets: Duration,
    pub(super) max_answer: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(10),
            ready_within: Duration::from_secs(60),
            probe_interval: Duration::from_secs(1),
            call: Duration::from_secs(120),
            calls: BTreeMap::new(),
            secrets: Duration::from_secs(30),
            max_answer: 1024 * 1024,
        }
    }
}

impl Settings {
    /// The shortest time that can be set.
    pub const MIN_TIME: Duration = Duration::from_millis(1);

    /// The longest time that can be set.
    pub const MAX_TIME: Duration = Duration::from_secs(60 * 60);

    /// The least and the most bytes that an answer may be allowed.
    pub const ANSWER_BYTES: std::ops::RangeInclusive<usize> = 1024..=64 * 1024 * 1024;

    /// How long a dial may take. Default: 10 s, as with kubelet.
    #[must_use]
    pub fn dial(mut self, bound: Duration) -> Self {
        self.dial = bound;
        self
    }

    /// How long a driver may be not ready (Probe) before connecting to it fails. Default: 60 s.
    #[must_use]
    pub fn ready_within(mut self, bound: Duration) -> Self {
        self.ready_within = bound;
        self
    }

    /// How long to wait before a driver that is not ready is probed again. Default: 1 s.
    #[must_use]
    pub fn probe_interval(mut self, interval: Duration) -> Self {
        self.probe_interval = interval;
        self
    }

    /// How long every call may take that has no time of its own. Default: 120 s, as with kubelet.
    ///
    /// The end of this time ends the wait, not the work: the driver is told the time that it has, and may go on.
    #[must_use]
    pub fn call(mut self, bound: Duration) -> Self {
        self.call = bound;
        self
    }

    /// How long the calls of one method may take. Default: as [`call`](Self::call).
    #[must_use]
    pub fn call_of(mut self, method: Method, bound: Duration) -> Self {
        self.calls.insert(method, bound);
        self
    }

    /// How long the secrets of a call may take to be resolved. Default: 30 s.
    #[must_use]
    pub fn secrets(mut self, bound: Duration) -> Self {
        self.secrets = bound;
        self
    }

    /// The most bytes of one answer. Default: 1 MiB.
    #[must_use]
    pub fn max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    pub(super) fn bound(&self, method: Method) -> Duration {
        self.calls.get(&method).copied().unwrap_or(self.call)
    }

    pub(super) fn check(&self) -> Result<(), InvalidSettings> {
        let times = [
            ("dial", self.dial),
            ("ready_within", self.ready_within),
            ("probe_interval", self.probe_interval),
            ("call", self.call),
            ("secrets", self.secrets),
        ];
        let times = times.into_iter().chain(self.calls.iter().map(|(method, bound)| (method.name(), *bound)));
        for (field, found) in times {
            if !(Self::MIN_TIME..=Self::MAX_TIME).contains(&found) {
                return Err(InvalidSettings::Time { field, found });
            }
        }
        if !Self::ANSWER_BYTES.contains(&self.max_answer) {
            return Err(InvalidSettings::MaxAnswer { found: self.max_answer });
        }
        Ok(())
    }
}

/// Why settings are not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// A time is out of bounds.
    #[error(
        "{field} is {found:?}; at least {:?} and at most {:?} are allowed",
        Settings::MIN_TIME,
        Settings::MAX_TIME
    )]
    Time {
        /// The setting, or the method.
        field: &'static str,
        /// The time.
        found: Duration,
    },
    /// An answer may have too few or too many bytes.
    #[error(
        "max_answer is {found} bytes; at least {} and at most {} are allowed",
        Settings::ANSWER_BYTES.start(),
        Settings::ANSWER_BYTES.end()
    )]
    MaxAnswer {
        /// The bytes.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_bounds_and_the_errors_name_them() {
        assert_eq!(Settings::default().check(), Ok(()));
        let found = Duration::from_secs(3601);
        let method = Method::NodeStageVolume;
        assert_eq!(
            Settings::default().call_of(method, found).check(),
            Err(InvalidSettings::Time { field: method.name(), found })
        );
        let found = Duration::ZERO;
        assert_eq!(
            Settings::default().dial(found).check(),
            Err(InvalidSettings::Time { field: "dial", found })
        );
        assert_eq!(
            Settings::default().max_answer(1023).check(),
            Err(InvalidSettings::MaxAnswer { found: 1023 })
        );
    }

    #[test]
    fn a_method_has_its_own_time_or_that_of_all() {
        let own = Duration::from_secs(5);
        let settings = Settings::default().call_of(Method::NodeStageVolume, own);
        assert_eq!(settings.bound(Method::NodeStageVolume), own);
        assert_eq!(settings.bound(Method::NodePublishVolume), Duration::from_secs(120));
    }
}
