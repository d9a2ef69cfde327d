//! Holds many idle sessions on one hub: the client of `cargo xtask perf sessions`.
//!
//! Prints a line when the first session is open, then opens the others and prints the seconds that they took. Exits
//! when standard input is closed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use edge_transport::link::{Address, DialOptions};
use edge_transport::tls::{ClientTls, TlsPaths};
use edge_transport::{Peer, PeerId};
use futures_util::StreamExt;

/// Sessions that are opened concurrently.
const CONCURRENT_OPENS: usize = 32;

#[derive(Debug, Parser)]
#[command(about = "Hold many idle sessions on one hub until standard input is closed")]
struct Options {
    /// The hub, wss://host:port or quic://host:port.
    #[arg(long)]
    hub: Address,
    /// Number of sessions, named NAME/0, NAME/1 and so on, where NAME is the first name in the certificate.
    #[arg(long, default_value_t = 1000)]
    sessions: usize,
    /// Certificate chain, PEM.
    #[arg(long)]
    tls_cert: PathBuf,
    /// Private key of the certificate, PEM.
    #[arg(long)]
    tls_key: PathBuf,
    /// Certificate authority of the hub's certificate, PEM.
    #[arg(long)]
    tls_ca: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(&options)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("idle-sessions: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let paths = TlsPaths::default().with_certificate(&options.tls_cert, &options.tls_key);
    let tls = ClientTls::open(paths.with_authorities(&options.tls_ca))?;
    let names = tls.identity()?.map(|identity| identity.names()).unwrap_or_default();
    let name = names.first().ok_or("the client certificate contains no peer name")?;
    let dial = DialOptions::default().tls(tls);
    let connect = async |number: usize| -> Result<Peer, Box<dyn Error>> {
        let dialer = options.hub.dialer(&dial)?;
        let peer = Peer::builder(PeerId::new(format!("{name}/{number}"))?).dialer(dialer).start()?;
        peer.connected().await?;
        Ok(peer)
    };
    let first = connect(0).await?;
    println!("1");
    let started = Instant::now();
    let mut all =
        futures_util::stream::iter(1..options.sessions).map(connect).buffer_unordered(CONCURRENT_OPENS);
    let mut sessions = vec![first];
    while let Some(peer) = all.next().await {
        sessions.push(peer?);
    }
    println!("{}", started.elapsed().as_secs_f64());
    let closed = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    closed.await??;
    Ok(())
}
