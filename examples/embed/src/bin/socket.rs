//! A CSI socket in the cloud for a driver on a node: sidecars call it as if the driver were here.
//!
//! `cargo run -p embed --bin socket -- wss://hub:10000 edge-1 vendor.csi unix:///csi/csi.sock CERT KEY CA`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use csi_proxy::prelude::*;
use edge_transport::tls::ClientTls;
use edge_transport::{Peer, PeerId};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [hub, node, driver, socket, certificate, key, authorities] = &arguments[..] else {
        println!("usage: socket HUB-URL NODE DRIVER SOCKET CERTIFICATE KEY AUTHORITIES");
        return Ok(ExitCode::FAILURE);
    };

    // ANCHOR: embed
    let tls = ClientTls::from_files(certificate, key, authorities)?;
    // A certificate for `socket` covers the names below it. Each process needs its own.
    let name = PeerId::of_this_process("socket")?;
    let peer = Peer::builder(name).dial(hub.parse()?, &tls)?.start()?;

    let driver = DriverName::new(driver)?;
    // The clock raises the term at each start, so that calls of an earlier process no longer begin.
    let relay = RetryRelay::over(peer.clone(), &driver, ClockTerms::default()).await?.for_one_node();
    let endpoint = Endpoint::new(driver, Router::fixed(node.parse()?), relay.clone());
    let serving = endpoint.serve(socket.parse()?).await?;
    // ANCHOR_END: embed

    println!("serving {}", serving.address());
    tokio::select! {
        signal = tokio::signal::ctrl_c() => signal?,
        replaced = relay.replaced() => return Err(replaced.into()),
    }
    serving.shutdown(Duration::from_secs(30)).await;
    peer.close().await;
    Ok(ExitCode::SUCCESS)
}
