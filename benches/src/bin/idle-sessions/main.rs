//! Holds many sessions on one hub, each with its own certificate: the client of `cargo xtask perf sessions`.
//!
//! Issues the certificates of hub and peers, and writes those that the hub needs to a folder. Then each line on
//! standard input begins a step, and each step ends with a line of figures in JSON:
//!
//! 1. the caller's session is open;
//! 2. the nodes' sessions are open;
//! 3. and further ones: the caller calls nodes until the next line.
//!
//! Exits when standard input is closed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

mod calls;
mod tls;

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use edge_csi_benches::authority::Authority;
use edge_transport::link::{Address, DialOptions, Dialer};
use edge_transport::tls::ClientTls;
use edge_transport::{Peer, PeerId};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin, stdin};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::client::Resumption;

use self::calls::Echo;
use self::tls::SourceDialer;

/// Sessions that are opened concurrently.
const CONCURRENT_OPENS: usize = 32;

/// The name of the peer that makes the calls.
const CALLER: &str = "caller";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Wss,
    Quic,
}

#[derive(Debug, Parser)]
#[command(about = "Hold many sessions on one hub until standard input is closed")]
struct Options {
    /// The hub, IP:PORT.
    #[arg(long)]
    hub: SocketAddr,
    #[arg(long, value_enum)]
    transport: Transport,
    /// Number of sessions: those of the nodes `node-1`, `node-2` and so on, and that of `caller`. Over wss each has its
    /// own source address.
    #[arg(long, default_value_t = 1000)]
    sessions: u32,
    /// Folder for `ca.pem`, `hub.pem` and `hub.key`.
    #[arg(long)]
    folder: PathBuf,
}

type SessionsResult<T> = Result<T, Box<dyn Error>>;

/// A peer that does not dial yet.
struct Idle {
    name: PeerId,
    dialer: Box<dyn Dialer>,
}

impl Idle {
    fn new(options: &Options, authority: &Authority, number: u32, name: &str) -> SessionsResult<Self> {
        let identity = authority.issue(&[name])?.identity()?;
        let mut tls = ClientConfig::clone(&*ClientTls::new(&identity)?.config()?);
        // A hub that was restarted resumes no TLS session, and the cache of one session takes more than all the rest.
        tls.resumption = Resumption::disabled();
        let tls = Arc::new(tls);
        let dialer: Box<dyn Dialer> = match options.transport {
            Transport::Wss => {
                // 127.0.0.1 is the hub.
                let from = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number);
                Box::new(SourceDialer { from, hub: options.hub, tls })
            }
            Transport::Quic => {
                let hub: Address = format!("quic://{}", options.hub).parse()?;
                hub.dialer(&DialOptions::default().tls(ClientTls::from(tls)))?
            }
        };
        Ok(Self { name: PeerId::new(name)?, dialer })
    }

    async fn open(self) -> SessionsResult<Peer> {
        let peer = Peer::builder(self.name).dialer(self.dialer).service(Echo::name()?, Echo).start()?;
        peer.connected().await?;
        Ok(peer)
    }
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

async fn run(options: &Options) -> SessionsResult<()> {
    let mut steps = BufReader::new(stdin()).lines();
    let started = Instant::now();
    let authority = Authority::new()?;
    write_files(&authority, &options.folder)?;
    let caller = Idle::new(options, &authority, 0, CALLER)?;
    let node = |number| Idle::new(options, &authority, number, &format!("node-{number}"));
    let nodes = (1..options.sessions).map(node).collect::<SessionsResult<Vec<_>>>()?;
    report_time(started);

    if !is_next(&mut steps).await? {
        return Ok(());
    }
    let started = Instant::now();
    let caller = caller.open().await?;
    report_time(started);

    if !is_next(&mut steps).await? {
        return Ok(());
    }
    let started = Instant::now();
    let mut opening = futures_util::stream::iter(nodes).map(Idle::open).buffer_unordered(CONCURRENT_OPENS);
    let mut nodes = Vec::new();
    while let Some(peer) = opening.next().await {
        nodes.push(peer?);
    }
    report_time(started);

    let mut next = is_next(&mut steps).await?;
    while next {
        let (figures, ended) = calls::run(&caller, &nodes, is_next(&mut steps)).await?;
        println!("{figures}");
        next = ended?;
    }
    Ok(())
}

/// Writes what the hub needs.
fn write_files(authority: &Authority, folder: &Path) -> SessionsResult<()> {
    let hub = authority.issue(&["localhost", "127.0.0.1"])?;
    for (name, pem) in [("hub.pem", hub.certificate), ("hub.key", hub.key), ("ca.pem", hub.root)] {
        std::fs::write(folder.join(name), pem)?;
    }
    Ok(())
}

fn report_time(since: Instant) {
    println!("{}", json!({ "seconds": since.elapsed().as_secs_f64() }));
}

/// Waits for the line that begins the next step; false at the end of the input.
async fn is_next(steps: &mut Lines<BufReader<Stdin>>) -> std::io::Result<bool> {
    Ok(steps.next_line().await?.is_some())
}
