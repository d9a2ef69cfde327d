//! A client of a CSI driver, with csi-proto only.
//!
//! `cargo run -p embed --bin csi_client -- unix:///csi/csi.sock`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;

use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::{GetPluginInfoRequest, ProbeRequest};
use tonic::transport::Endpoint;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let socket =
        std::env::args().nth(1).ok_or("usage: csi_client SOCKET, for example unix:///csi/csi.sock")?;

    // ANCHOR: embed
    let channel = Endpoint::from_shared(socket)?.connect().await?;
    let mut identity = IdentityClient::new(channel);
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await?.into_inner();
    let probe = identity.probe(ProbeRequest {}).await?.into_inner();
    println!("{} {}, ready: {}", info.name, info.vendor_version, probe.ready.unwrap_or(true));
    // ANCHOR_END: embed
    Ok(())
}
