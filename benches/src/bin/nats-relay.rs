//! Endpoint and dispatcher of csi-proxy with a NATS server in place of the session: the "NATS relay" of the comparison.
//! Relays only unary calls.
#![allow(clippy::print_stderr, reason = "a command's output")]

use std::error::Error;
use std::process::ExitCode;

use async_nats::Client;
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use clap::{Args, Parser, Subcommand};
use csi_proxy::{
    Call, Dispatcher, DriverName, Endpoint, Fault, NodeId, Outcome, Relay, Replies, Router, SocketAddress,
};
use futures_util::StreamExt;

const SUBJECT: &str = "csi.edge-1";
const DRIVER: &str = "bench.csi.edge";

#[derive(Debug, Parser)]
#[command(about = "Relay CSI calls through a NATS server; for comparison only")]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The cloud end: forwards calls on a socket as NATS requests.
    Proxy {
        #[command(flatten)]
        server: Server,
        /// The socket to listen on, unix:///path.
        #[arg(long)]
        endpoint: String,
    },
    /// The edge end: forwards NATS requests as calls to a driver.
    Agent {
        #[command(flatten)]
        server: Server,
        /// The driver's socket, unix:///path.
        #[arg(long)]
        driver: String,
    },
}

#[derive(Debug, Args)]
struct Server {
    /// Address of the NATS server, host:port.
    #[arg(long)]
    server: String,
}

struct NatsRelay(Client);

/// Packs two byte strings into one message: the length of the first in 4 bytes, the first, the second.
fn pack(first: &Bytes, second: &Bytes) -> Bytes {
    let mut packed = BytesMut::with_capacity(4 + first.len() + second.len());
    packed.put_u32(u32::try_from(first.len()).unwrap_or(u32::MAX));
    packed.put_slice(first);
    packed.put_slice(second);
    packed.freeze()
}

fn unpack(mut packed: Bytes) -> Option<(Bytes, Bytes)> {
    let length = packed.try_get_u32().ok()? as usize;
    (length <= packed.len()).then(|| (packed.split_to(length), packed))
}

#[async_trait]
impl Relay for NatsRelay {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let lost = |reason: String| Fault::LinkLost { reason };
        let request = pack(&call.encode_header(), &call.body);
        let answer = self.0.request(SUBJECT, request).await.map_err(|error| lost(error.to_string()))?;
        let (closing, body) = unpack(answer.payload)
            .ok_or_else(|| lost("the answer is shorter than its length prefix".to_owned()))?;
        let outcome = Outcome::decode(closing).map_err(|error| lost(error.to_string()))?;
        Ok(if outcome.is_ok() { Replies::unary(body, outcome) } else { Replies::outcome(outcome) })
    }
}

async fn answer(drivers: Dispatcher, client: Client, message: async_nats::Message) {
    let (Some(reply), Some((header, body))) = (message.reply, unpack(message.payload)) else { return };
    let Ok(call) = Call::decode(header, body) else { return };
    let (mut messages, outcome) = match drivers.relay(call).await {
        Ok(replies) => replies.collect().await,
        Err(error) => (Vec::new(), error.into()),
    };
    let _ = client.publish(reply, pack(&outcome.encode(), &messages.pop().unwrap_or_default())).await;
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let driver = DriverName::new(DRIVER)?;
    match options.role {
        Role::Proxy { server, endpoint } => {
            let relay = NatsRelay(connect(&server.server).await?);
            let endpoint = SocketAddress::new(endpoint)?;
            let serving =
                Endpoint::new(driver, Router::fixed(NodeId::new("edge-1")?), relay).serve(endpoint).await?;
            std::future::pending::<()>().await;
            drop(serving);
        }
        Role::Agent { server, driver: socket } => {
            let drivers = Dispatcher::new().with_driver(driver, SocketAddress::new(socket)?);
            let client = connect(&server.server).await?;
            let mut requests = client.subscribe(SUBJECT).await?;
            while let Some(message) = requests.next().await {
                tokio::spawn(answer(drivers.clone(), client.clone(), message));
            }
        }
    }
    Ok(())
}

async fn connect(server: &str) -> Result<Client, Box<dyn Error>> {
    Ok(async_nats::ConnectOptions::new().retry_on_initial_connect().connect(server).await?)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(options)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nats-relay: {error}");
            ExitCode::FAILURE
        }
    }
}
