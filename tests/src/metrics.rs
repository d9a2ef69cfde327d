//! The metrics of a process at `/metrics`. The process must run with `--http-endpoint 127.0.0.1:0` and `-v`.

use std::collections::BTreeMap;

use crate::process::Process;
use crate::{page, wait};

/// Waits until a process serves its metrics, and returns the values by name with labels.
///
/// # Panics
/// If the process does not within [`wait::SOON`].
pub async fn of(process: &Process) -> BTreeMap<String, f64> {
    wait::until(&format!("{process:?} serves its metrics"), async || {
        let address = page::address_in(&process.log())?;
        let answer = page::get(&address, "/metrics").await?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let number = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Some(body.lines().filter(|line| !line.starts_with('#')).filter_map(number).collect())
    })
    .await
}
