//! What a process counts, as its `/metrics` says. It must run with `--http-endpoint 127.0.0.1:0` and `-v`.

use std::collections::BTreeMap;

use crate::process::Process;
use crate::{page, wait};

/// The numbers of a process by their names with labels. Asked again until there are some.
///
/// # Panics
/// If it does not serve them.
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
