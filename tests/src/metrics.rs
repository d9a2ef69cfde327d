//! What a process counts, as its `/metrics` says. It must run with `--http 127.0.0.1:0` and `-v`.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Process;
use crate::wait;

/// The numbers of a process by their names with labels. Asked again until there are some.
///
/// # Panics
/// If it does not serve them.
pub async fn of(process: &Process) -> BTreeMap<String, f64> {
    wait::until(&format!("{process:?} serves its metrics"), async || {
        let log = process.log();
        // The last one: a process that was started again appends to the same log.
        let line = log.lines().rev().find(|line| line.contains("status page"))?;
        let address = line.rsplit_once("address=")?.1.split_whitespace().next()?;
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let number = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Some(body.lines().filter(|line| !line.starts_with('#')).filter_map(number).collect())
    })
    .await
}
