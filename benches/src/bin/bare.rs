//! A chain that forwards the bytes of calls and nothing else: what a call through these processes and sockets costs at least.
//!
//! A request and a reply have the sizes of a CreateVolume. Their only framing is that both sizes are fixed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use edge_csi_benches::load::{Figures, histogram};
use edge_csi_benches::payload;
use edge_transport::tls::{ClientAuth, ClientTls, ServerTls, TlsPaths};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

type BareResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, Parser)]
#[command(about = "A chain that forwards the bytes of calls and nothing else")]
enum Command {
    /// Answer each request.
    Driver {
        #[arg(long)]
        socket: PathBuf,
    },
    /// Forward each connection.
    #[command(subcommand)]
    Forward(Hop),
    /// Drive a chain in a closed loop over one connection, and print its figures as JSON.
    Load {
        #[arg(long)]
        socket: PathBuf,
        /// Requests that are on their way at once.
        #[arg(long)]
        in_flight: usize,
        /// Seconds to measure, after a warm-up of a fifth of it.
        #[arg(long)]
        seconds: f64,
    },
}

/// What one process of the chain joins.
#[derive(Debug, Clone, Subcommand)]
enum Hop {
    /// Two unix sockets.
    Unix { listen: PathBuf, dial: PathBuf },
    /// A unix socket, and TLS with a client certificate.
    ToTls { listen: PathBuf, dial: SocketAddr, certificate: PathBuf, key: PathBuf, authority: PathBuf },
    /// TLS with a client certificate, and a unix socket.
    FromTls { listen: SocketAddr, dial: PathBuf, certificate: PathBuf, key: PathBuf, authority: PathBuf },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Driver { socket } => driver(UnixListener::bind(socket)).await,
        Command::Forward(hop) => forward(hop).await,
        Command::Load { socket, in_flight, seconds } => load(socket, in_flight.max(1), seconds).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn driver(listener: std::io::Result<UnixListener>) -> BareResult<()> {
    let (listener, request, reply) = (listener?, payload::request(), payload::reply());
    loop {
        let (mut stream, _) = listener.accept().await?;
        let (size, reply) = (request.len(), reply.clone());
        tokio::spawn(async move {
            let (mut buffer, mut received) = (vec![0; 64 << 10], 0);
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                received += read;
                let replies = reply.repeat(received / size);
                received %= size;
                if stream.write_all(&replies).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn forward(hop: Hop) -> BareResult<()> {
    match hop {
        Hop::Unix { listen, dial } => {
            let listener = UnixListener::bind(listen)?;
            loop {
                let (near, _) = listener.accept().await?;
                // The next process may not listen yet: the client tries again.
                let Ok(far) = UnixStream::connect(&dial).await else { continue };
                join(near, far);
            }
        }
        Hop::ToTls { listen, dial, certificate, key, authority } => {
            let paths = TlsPaths::default().with_certificate(certificate, key).with_authorities(authority);
            let connector = TlsConnector::from(ClientTls::open(paths)?.config()?);
            let listener = UnixListener::bind(listen)?;
            loop {
                let (near, _) = listener.accept().await?;
                let Ok(far) = TcpStream::connect(dial).await else { continue };
                far.set_nodelay(true)?;
                join(near, connector.connect(ServerName::try_from("localhost")?, far).await?);
            }
        }
        Hop::FromTls { listen, dial, certificate, key, authority } => {
            let paths = TlsPaths::default().with_certificate(certificate, key).with_authorities(authority);
            let acceptor = TlsAcceptor::from(ServerTls::open(paths, ClientAuth::Required)?.config()?);
            let listener = TcpListener::bind(listen).await?;
            loop {
                let (near, _) = listener.accept().await?;
                near.set_nodelay(true)?;
                let near = acceptor.accept(near).await?;
                let Ok(far) = UnixStream::connect(&dial).await else { continue };
                join(near, far);
            }
        }
    }
}

/// Copies both ways until one end closes.
fn join<A, B>(mut near: A, mut far: B)
where
    A: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
}

async fn load(socket: PathBuf, in_flight: usize, seconds: f64) -> BareResult<()> {
    let (request, size) = (payload::request(), payload::reply().len());
    let mut stream = UnixStream::connect(socket).await?;
    let length = Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0));
    let from = Instant::now() + (length / 5).min(Duration::from_secs(1));
    let (mut sent, mut tally, mut received) = (VecDeque::new(), histogram(), 0);
    let mut buffer = vec![0; 64 << 10];
    let mut due = in_flight;
    while Instant::now() < from + length {
        sent.extend(std::iter::repeat_n(Instant::now(), due));
        stream.write_all(&request.repeat(due)).await?;
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err("the chain closed the connection".into());
        }
        received += read;
        due = received / size;
        received %= size;
        for started in sent.drain(..due).filter(|started| *started >= from) {
            tally.saturating_record(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    println!("{}", serde_json::json!(Figures::of(in_flight, length, 0, &tally)));
    Ok(())
}
