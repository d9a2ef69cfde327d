//! How long calls may take at a driver.

use std::str::FromStr;
use std::time::Duration;

use csi_proto::Method;
use csi_proxy::{Dispatcher, DriverSettings};

use super::AgentOptions;
use crate::process::Fatal;
use crate::values::{InvalidValue, duration};

/// Shortest ceiling: less would cut work that every driver needs time for.
const SHORTEST: Duration = Duration::from_secs(1);

/// Longest `--volume-wait`: what waits holds a place and a request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// `METHOD=TIME`: the ceiling of one method, like `CreateVolume=2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodCeiling {
    /// The method.
    pub method: Method,
    /// Its longest time.
    pub ceiling: Duration,
}

/// What was given is no ceiling of a method.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCeiling {
    /// There is no `=`.
    #[error("{found:?} has not the form METHOD=TIME, like CreateVolume=2h")]
    Form {
        /// What was given.
        found: String,
    },
    /// CSI has no such method.
    #[error("CSI has no method {found:?}; give its name as in CreateVolume")]
    Method {
        /// What was given.
        found: String,
    },
    /// The time cannot be read.
    #[error(transparent)]
    Time(#[from] InvalidValue),
}

impl FromStr for MethodCeiling {
    type Err = InvalidCeiling;

    fn from_str(text: &str) -> Result<Self, InvalidCeiling> {
        let (name, time) =
            text.split_once('=').ok_or_else(|| InvalidCeiling::Form { found: text.to_owned() })?;
        let method = Method::ALL.iter().copied().find(|method| method.name() == name);
        let method = method.ok_or_else(|| InvalidCeiling::Method { found: name.to_owned() })?;
        Ok(Self { method, ceiling: duration(time)? })
    }
}

/// Bounds of every driver's calls.
pub(super) fn driver_settings(options: &AgentOptions) -> Result<DriverSettings, Fatal> {
    let mut settings = DriverSettings::default();
    settings.ceiling = long_enough("--call-ceiling", options.call_ceiling)?;
    for MethodCeiling { method, ceiling } in &options.method_ceiling {
        if settings.ceilings.insert(*method, long_enough("--method-ceiling", *ceiling)?).is_some() {
            return Err(Fatal::Input(format!("--method-ceiling: {} is named twice", method.name())));
        }
    }
    Ok(settings)
}

/// A dispatcher without drivers.
pub(super) fn dispatcher(options: &AgentOptions) -> Result<Dispatcher, Fatal> {
    let wait = options.volume_wait;
    if wait > LONGEST_WAIT {
        return Err(Fatal::Input(format!(
            "--volume-wait: {wait:?} is too long; give at most {LONGEST_WAIT:?}"
        )));
    }
    Ok(Dispatcher::new().with_volume_wait(wait))
}

fn long_enough(option: &str, found: Duration) -> Result<Duration, Fatal> {
    if found < SHORTEST {
        // No time at all has no unit of its own.
        let found = if found.is_zero() { "0s".to_owned() } else { format!("{found:?}") };
        return Err(Fatal::Input(format!("{option}: {found} is too short; give at least {SHORTEST:?}")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_needs_a_method_of_csi_and_a_time() {
        let found: MethodCeiling = "CreateVolume=2h".parse().unwrap();
        assert_eq!((found.method, found.ceiling), (Method::CreateVolume, Duration::from_secs(7200)));
        let parsed = |text: &str| text.parse::<MethodCeiling>().unwrap_err();
        assert!(matches!(parsed("CreateVolume"), InvalidCeiling::Form { .. }));
        assert!(matches!(parsed("MakeVolume=2h"), InvalidCeiling::Method { .. }));
        assert!(matches!(parsed("CreateVolume=2"), InvalidCeiling::Time(_)));
    }
}
