//! A CSI socket and a driver with an MQTT broker between them.
#![allow(clippy::print_stderr, reason = "a command's output")]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use csi_proxy::{Dispatcher, DriverName, Endpoint, NodeId, Router, SocketAddress};
use mqtt_bus::{Broker, KEY_LEN, MqttRelay, Seal, serve};

#[derive(Debug, Parser)]
#[command(about = "Relay CSI calls through an MQTT broker")]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The cloud end: sends the calls on a socket to a node.
    Proxy {
        #[command(flatten)]
        common: Common,
        /// The socket to listen on, unix:///path.
        #[arg(long)]
        endpoint: SocketAddress,
    },
    /// The edge end: passes the calls to a driver.
    Agent {
        #[command(flatten)]
        common: Common,
        /// The driver's socket, unix:///path.
        #[arg(long)]
        driver: SocketAddress,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// Address of the broker, host:port.
    #[arg(long)]
    server: String,
    /// User name at the broker.
    #[arg(long, requires = "password_file")]
    user: Option<String>,
    /// File of the password.
    #[arg(long, requires = "user")]
    password_file: Option<PathBuf>,
    /// Name of the driver.
    #[arg(long)]
    drivername: DriverName,
    /// Name of the node.
    #[arg(long, default_value = "edge-1")]
    nodeid: NodeId,
    /// File of the key that seals the payloads: 32 random bytes, the same at both ends. Without it the broker reads them.
    #[arg(long)]
    key: Option<PathBuf>,
}

impl Common {
    fn broker(&self) -> Result<Broker, Box<dyn Error>> {
        let seal = match &self.key {
            Some(file) => {
                let key = <[u8; KEY_LEN]>::try_from(std::fs::read(file)?)
                    .map_err(|found| format!("the key has {} bytes; expected {KEY_LEN}", found.len()))?;
                Seal::with_key(&key).map_err(|_| "the key is not valid")?
            }
            None => Seal::none(),
        };
        let (host, port) = self.server.rsplit_once(':').ok_or("the server must be host:port")?;
        let broker = Broker::new(host, port.parse()?, seal);
        Ok(match (&self.user, &self.password_file) {
            (Some(user), Some(file)) => broker.with_login(user, std::fs::read_to_string(file)?.trim_end()),
            _ => broker,
        })
    }
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    match options.role {
        Role::Proxy { common, endpoint } => {
            let relay = MqttRelay::new(common.broker()?);
            let router = Router::fixed(common.nodeid);
            let serving = Endpoint::new(common.drivername, router, relay).serve(endpoint).await?;
            std::future::pending::<()>().await;
            drop(serving);
        }
        Role::Agent { common, driver } => {
            let broker = common.broker()?;
            let drivers = Dispatcher::new().with_driver(common.drivername, driver);
            serve(&broker, &common.nodeid, drivers).await;
        }
    }
    Ok(())
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
            eprintln!("mqtt-relay: {error}");
            ExitCode::FAILURE
        }
    }
}
