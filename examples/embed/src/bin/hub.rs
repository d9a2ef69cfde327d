//! A hub: agents and sockets dial it over `wss://` with certificates. It stores nothing.
//!
//! `cargo run -p embed --bin hub -- wss://0.0.0.0:10000 hub.pem hub.key ca.pem`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::process::ExitCode;

use edge_transport::Hub;
use edge_transport::hub::Rules;
use edge_transport::tls::ServerTls;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate, key, authorities] = &arguments[..] else {
        println!("usage: hub URL CERTIFICATE KEY AUTHORITIES");
        return Ok(ExitCode::FAILURE);
    };

    // ANCHOR: embed
    let tls = ServerTls::from_files(certificate, key, authorities)?;
    // A process whose certificate is for `socket` may call each node, and no other call is allowed.
    let policy = "socket=edge-*".parse::<Rules>()?;
    let builder = Hub::builder().listen(address.parse()?, &tls).await?;
    let hub = builder.policy(policy).presence().start()?;
    // ANCHOR_END: embed

    println!("the hub listens on {address}");
    tokio::signal::ctrl_c().await?;
    hub.close().await;
    Ok(ExitCode::SUCCESS)
}
