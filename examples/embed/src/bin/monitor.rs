//! A socket for an orchestrator, in front of a driver on the same host, that reports which rules of the CSI spec the
//! orchestrator breaks.
//!
//! `cargo run -p embed --bin monitor -- vendor.csi unix:///plugins/vendor/csi.sock unix:///csi/csi.sock`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::time::Duration;

use csi_proxy::monitor::{Monitored, Monitors};
use csi_proxy::prelude::*;
use tokio::time::interval;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, driver_socket, csi_socket] = &arguments[..] else {
        return Err("usage: monitor DRIVER DRIVER-SOCKET CSI-SOCKET".into());
    };

    // ANCHOR: embed
    let driver = DriverName::new(driver)?;
    let drivers = Dispatcher::new().with_driver(driver.clone(), driver_socket.parse()?);
    // Each violation is logged as a warning of `tracing`, with the rule and its place in the spec.
    let monitors = Monitors::default();
    let relay = Monitored::new(drivers, monitors.clone());
    let endpoint = Endpoint::new(driver, Router::fixed("this-node".parse()?), relay).with_node_calls();
    let serving = endpoint.serve(csi_socket.parse()?).await?;
    // ANCHOR_END: embed

    println!("serving {}", serving.address());
    let (mut ticks, mut reported) = (interval(Duration::from_millis(500)), 0);
    loop {
        tokio::select! {
            signal = tokio::signal::ctrl_c() => break signal?,
            _ = ticks.tick() => {}
        }
        let counts = monitors.counts();
        if counts.violations != reported {
            reported = counts.violations;
            println!("{reported} violations of the spec, {} volumes known", counts.volumes);
        }
    }
    serving.shutdown(Duration::from_secs(30)).await;
    Ok(())
}
