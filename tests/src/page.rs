//! What a process answers over HTTP: its status page, its health, its metrics. It must run with `--http-endpoint 127.0.0.1:0`
//! and `-v`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Process;
use crate::wait;

/// Where it is served, as the log says, in words or in JSON. The last one: a process that was started again appends to the same
/// log.
#[must_use]
pub fn address_in(log: &str) -> Option<String> {
    let line = log.lines().rev().find(|line| line.contains("status page"))?;
    let address = match line.rsplit_once("address=") {
        Some((_, rest)) => rest.split_whitespace().next()?,
        None => line.rsplit_once(r#""address":""#)?.1.split('"').next()?,
    };
    Some(address.to_owned())
}

/// The whole answer, headers and body; `None` without an answer.
pub async fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Where a process serves it, once it does.
///
/// # Panics
/// If it never does.
pub async fn address(process: &Process) -> String {
    wait::until("the status page is served", async || address_in(&process.log())).await
}

/// What a process answers, once it does.
///
/// # Panics
/// If it never does.
pub async fn of(process: &Process, path: &str) -> String {
    let address = address(process).await;
    wait::until(&format!("{path} is answered"), async || get(&address, path).await).await
}
