//! What drivers are at, kept over a restart in `--state-dir`.

use std::time::Duration;

use csi_proxy::Dispatcher;
use csi_proxy::operation::Limits;
use csi_proxy::operation::journal::JournalSettings;
use csi_proxy::operation::journal::redb::RedbJournal;

use crate::process::Fatal;
use crate::state::StateDirectory;
use crate::values::TimeSpan;

/// The journal's file in the state directory.
const FILE: &str = "operations.redb";

/// How often a journal that has failed is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// Longest `--volume-wait`: who waits holds a place and a request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A dispatcher that goes on where the last one ended, if there is a directory to know it from.
pub(super) fn open(state: Option<&StateDirectory>, volume_wait: TimeSpan) -> Result<Dispatcher, Fatal> {
    if volume_wait.duration() > LONGEST_WAIT {
        return Err(Fatal::Input(format!(
            "--volume-wait: {volume_wait} is too long; give at most {LONGEST_WAIT:?}"
        )));
    }
    let mut limits = Limits::default();
    limits.wait = volume_wait.duration();
    let dispatcher = Dispatcher::new().with_operation_limits(limits);
    let Some(state) = state else { return Ok(dispatcher) };
    let opened = RedbJournal::open_or_set_aside(state.path().join(FILE)).map_err(Fatal::runtime)?;
    if let Some((aside, what)) = opened.set_aside {
        tracing::error!(
            ?aside,
            what,
            "the journal of operations was damaged and is set aside; what ran is done again when it is asked for"
        );
    }
    let dispatcher = dispatcher.with_journal(opened.journal, JournalSettings::default());
    let dispatcher = dispatcher.map_err(Fatal::runtime)?;
    tokio::spawn(reopen_after_failures(dispatcher.clone()));
    Ok(dispatcher)
}

/// A full disk has room again some day.
async fn reopen_after_failures(dispatcher: Dispatcher) {
    loop {
        tokio::time::sleep(AGAIN).await;
        if let Err(reason) = dispatcher.reopen_journal().await {
            tracing::warn!(reason, "the journal of operations cannot be reopened");
        }
    }
}
