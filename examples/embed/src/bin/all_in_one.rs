//! Hub, agent and socket in one program, over a unix socket.
//!
//! `cargo run -p embed --bin all_in_one -- vendor.csi unix:///plugins/vendor/csi.sock unix:///csi/csi.sock unix:///run/hub.sock`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::time::Duration;

use csi_proxy::prelude::*;
use edge_transport::link::{Address, DialOptions, ListenOptions};
use edge_transport::{Hub, Peer, PeerId};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, driver_socket, csi_socket, hub_socket] = &arguments[..] else {
        return Err("usage: all_in_one DRIVER DRIVER-SOCKET CSI-SOCKET HUB-SOCKET".into());
    };

    // ANCHOR: embed
    let driver = DriverName::new(driver)?;
    // The hub.
    let address: Address = hub_socket.parse()?;
    let hub = Hub::builder().listen(address.clone(), ListenOptions::default()).await?.presence().start()?;
    let dial = DialOptions::default();
    // The node with the driver.
    let drivers = Dispatcher::new().with_driver(driver.clone(), driver_socket.parse()?);
    let agent =
        Peer::builder(PeerId::new("edge-1")?).dial(address.clone(), &dial)?.serve_csi(drivers).start()?;
    // The cloud with the sidecars.
    let proxy = Peer::builder(PeerId::new("socket")?).dial(address, &dial)?.start()?;
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
