//! Requests to the HTTP endpoint of a process: its status page, its health, its metrics. The process must run with
//! `--http-endpoint 127.0.0.1:0` and `-v`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Process;
use crate::wait;

/// Returns the address of the status page from a log in text or JSON. The last address counts, since a restarted
/// process appends to the same log.
#[must_use]
pub fn address_in(log: &str) -> Option<String> {
    let line = log.lines().rev().find(|line| line.contains("status page"))?;
    let address = match line.rsplit_once("address=") {
        Some((_, rest)) => rest.split_whitespace().next()?,
        None => line.rsplit_once(r#""address":""#)?.1.split('"').next()?,
    };
    Some(address.to_owned())
}

/// Requests a path. Returns the headers and the body of the answer; `None` without an answer.
pub async fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Waits until a process serves its status page, and returns the address.
///
/// # Panics
/// If the process does not within [`wait::SOON`].
pub async fn address(process: &Process) -> String {
    wait::until("the status page is served", async || address_in(&process.log())).await
}

/// Waits until a process answers a path, and returns the headers and the body.
///
/// # Panics
/// If the process does not within [`wait::SOON`].
pub async fn of(process: &Process, path: &str) -> String {
    let address = address(process).await;
    wait::until(&format!("{path} is answered"), async || get(&address, path).await).await
}
