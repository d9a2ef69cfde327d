//! The dispatcher of the node's drivers.

use std::time::Duration;

use csi_proxy::Dispatcher;

use crate::process::Fatal;
use crate::values::TimeSpan;

/// Longest `--volume-wait`: what waits holds a place and a request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A dispatcher without drivers.
pub(super) fn dispatcher(volume_wait: TimeSpan) -> Result<Dispatcher, Fatal> {
    if volume_wait.duration() > LONGEST_WAIT {
        return Err(Fatal::Input(format!(
            "--volume-wait: {volume_wait} is too long; give at most {LONGEST_WAIT:?}"
        )));
    }
    Ok(Dispatcher::new().with_volume_wait(volume_wait.duration()))
}
