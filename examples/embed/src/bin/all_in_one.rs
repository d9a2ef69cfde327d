//! Hub, agent and socket in one program, over `wss` with certificates.
//!
//! The certificate of the process has the host in the URL of the hub, `edge-1` and `socket` as its names.
//!
//! `cargo run -p embed --bin all_in_one -- vendor.csi unix:///vendor/csi.sock unix:///csi/csi.sock wss://hub:10000 CERT KEY CA`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::time::Duration;

use csi_proxy::prelude::*;
use edge_transport::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, driver_socket, csi_socket, hub_url, certificate, key, authorities] = &arguments[..] else {
        return Err(
            "usage: all_in_one DRIVER DRIVER-SOCKET CSI-SOCKET HUB-URL CERTIFICATE KEY AUTHORITIES".into()
        );
    };

    // ANCHOR: embed
    let driver = DriverName::new(driver)?;
    // The hub.
    let tls = ServerTls::from_files(certificate, key, authorities)?;
    let hub = Hub::builder().listen(hub_url.parse()?, &tls).await?.presence().start()?;
    // The node with the driver.
    let tls = ClientTls::from_files(certificate, key, authorities)?;
    let drivers = Dispatcher::new().with_driver(driver.clone(), driver_socket.parse()?);
    let agent = Peer::builder("edge-1".parse()?).dial(hub_url.parse()?, &tls)?.serve_csi(drivers).start()?;
    // The cloud with the sidecars.
    let proxy = Peer::builder("socket".parse()?).dial(hub_url.parse()?, &tls)?.start()?;
    let relay = RetryRelay::over(proxy.clone(), &driver, ClockTerms::default()).await?;
    let endpoint = Endpoint::new(driver, Router::fixed("edge-1".parse()?), relay);
    let serving = endpoint.serve(csi_socket.parse()?).await?;
    // ANCHOR_END: embed

    println!("serving {}", serving.address());
    tokio::signal::ctrl_c().await?;
    serving.shutdown(Duration::from_secs(30)).await;
    proxy.close().await;
    agent.close().await;
    hub.close().await;
    Ok(())
}
