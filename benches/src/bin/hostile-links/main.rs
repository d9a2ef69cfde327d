//! Attacks a hub with many connections that write their own bytes: the client of `cargo xtask perf hostile`.
//!
//! Prints a line when every connection was attempted, and its figures as JSON when standard input is closed. A
//! connection that ends is opened again; all of them together at the given rate.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

mod quic;
mod tls;

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use edge_transport::advanced::frame::{self, Frame, Hello, Kind};
use edge_transport::link::Lane;
use edge_transport::tls::{ClientTls, TlsPaths};
use edge_transport::{PeerId, SessionId};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_rustls::rustls::ClientConfig;

/// Time in which the first connections are opened.
const OPENING: Duration = Duration::from_secs(2);

/// The announced length of the unfinished frames: the largest that a hub accepts by default.
const FRAME: usize = 8 << 20;

/// The largest frame that a hub accepts from a peer that it has not admitted.
const UNADMITTED_FRAME: usize = 16 << 10;

type AttackResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What the connections do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Attack {
    /// Opens links without a certificate, and sends frames without their last byte.
    Unauthenticated,
    /// Opens links of one node's certificate under different names below its own, and sends frames without their
    /// last byte.
    OneCertificate,
    /// Opens links of different nodes' certificates, and sends frames without their last byte.
    ManyCertificates,
    /// Opens TCP connections that send nothing, or sends QUIC handshakes and drops the responses.
    HalfOpen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Wss,
    Quic,
}

#[derive(Debug, Parser)]
#[command(about = "Attack a hub with many connections until standard input is closed")]
struct Options {
    #[arg(long, value_enum)]
    attack: Attack,
    #[arg(long, value_enum)]
    transport: Transport,
    /// The hub, IP:PORT. Its certificate is valid for the name localhost.
    #[arg(long)]
    hub: SocketAddr,
    /// The local address of the connections: the hub sees another source than that of its genuine peers.
    #[arg(long, default_value = "127.66.0.1")]
    from: IpAddr,
    /// Number of connections.
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Connections that are opened again each second, after the first ones.
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Certificate authority of the hub's certificate, PEM.
    #[arg(long)]
    tls_ca: PathBuf,
    /// Folder with the certificates `hostile-0.pem`, `hostile-1.pem` and so on, and their keys `hostile-0.key`.
    #[arg(long)]
    certificates: PathBuf,
}

impl Options {
    /// The certificate of a connection, by number.
    const fn certificate(&self, number: usize) -> Option<usize> {
        match self.attack {
            Attack::Unauthenticated | Attack::HalfOpen => None,
            Attack::OneCertificate => Some(0),
            Attack::ManyCertificates => Some(number),
        }
    }

    fn tls(&self, certificate: Option<usize>) -> AttackResult<Arc<ClientConfig>> {
        let mut paths = TlsPaths::default().with_authorities(&self.tls_ca);
        if let Some(number) = certificate {
            let file = |extension| self.certificates.join(format!("hostile-{number}.{extension}"));
            paths = paths.with_certificate(file("pem"), file("key"));
        }
        Ok(ClientTls::open(paths)?.config()?)
    }
}

/// What all connections share.
struct Shared {
    options: Options,
    /// Limits the rate of new connections.
    pace: Mutex<Interval>,
    /// Connections that were opened, up to TLS where the attack uses it.
    opened: AtomicU64,
    /// Admissions by the hub.
    admitted: AtomicU64,
    /// Connections that have not been attempted yet.
    unattempted: AtomicUsize,
    all_attempted: Notify,
    endpoint: Option<quinn::Endpoint>,
}

/// One of the connections, which is opened again whenever it ends.
struct Connection {
    number: usize,
    /// How often it was opened.
    session: u64,
    is_attempted: AtomicBool,
    /// The TLS configuration with its certificate.
    tls: Arc<ClientConfig>,
    shared: Arc<Shared>,
}

impl Connection {
    /// Counts a connection that is open.
    fn opened(&self) {
        self.shared.opened.fetch_add(1, Relaxed);
        self.attempted();
    }

    /// Notes that the first attempt has succeeded or failed.
    fn attempted(&self) {
        if !self.is_attempted.swap(true, Relaxed) && self.shared.unattempted.fetch_sub(1, Relaxed) == 1 {
            self.shared.all_attempted.notify_one();
        }
    }

    /// Counts an admission, if the first frame of the hub is its hello.
    fn admitted(&self, first: Vec<u8>) -> AttackResult<()> {
        match frame::decode(first.into(), FRAME)?.kind {
            Kind::Hello(_) => {
                self.shared.admitted.fetch_add(1, Relaxed);
                Ok(())
            }
            other => Err(format!("not admitted: {other:?}").into()),
        }
    }

    /// Returns the hello of a peer whose name the certificate proves.
    fn hello(&self, certificate: usize) -> AttackResult<Vec<u8>> {
        let name = match self.shared.options.attack {
            Attack::OneCertificate => format!("hostile-{certificate}/{}", self.number),
            _ => format!("hostile-{certificate}"),
        };
        // Another run is another instance.
        let instance = u64::from(std::process::id());
        let session = SessionId { instance, number: self.session };
        Ok(encoded(Kind::Hello(Hello::new(PeerId::new(name)?, session))))
    }

    async fn run(mut self) {
        loop {
            self.shared.pace.lock().await.tick().await;
            self.session += 1;
            // A refused connection is one of the attack.
            let _ = match self.shared.options.transport {
                Transport::Wss => tls::attack(&self).await,
                Transport::Quic => quic::attack(&self).await,
            };
            self.attempted();
        }
    }
}

/// A frame of the session, without the framing of a link.
fn encoded(kind: Kind) -> Vec<u8> {
    let frame = frame::encode(Frame::link(kind), Lane::Control);
    [frame.head, frame.body].concat()
}

fn pace(per_second: f64) -> Interval {
    let mut pace = interval(Duration::from_secs_f64(1.0 / per_second.clamp(0.1, 1e6)));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
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
            eprintln!("hostile-links: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> AttackResult<()> {
    let count = options.connections.max(1);
    let endpoint = match options.transport {
        Transport::Wss => None,
        Transport::Quic => Some(quinn::Endpoint::client((options.from, 0).into())?),
    };
    let mut configurations = Vec::new();
    for number in 0..count {
        let shared_by_all = options.attack != Attack::ManyCertificates && number > 0;
        let known = if shared_by_all { configurations.first().cloned() } else { None };
        configurations.push(match known {
            Some(known) => known,
            None => options.tls(options.certificate(number))?,
        });
    }
    let shared = Arc::new(Shared {
        pace: Mutex::new(pace(count as f64 / OPENING.as_secs_f64())),
        options,
        opened: AtomicU64::new(0),
        admitted: AtomicU64::new(0),
        unattempted: AtomicUsize::new(count),
        all_attempted: Notify::new(),
        endpoint,
    });
    let started = Instant::now();
    for (number, tls) in configurations.into_iter().enumerate() {
        let shared = Arc::clone(&shared);
        tokio::spawn(
            Connection { number, session: 0, is_attempted: AtomicBool::new(false), tls, shared }.run(),
        );
    }
    shared.all_attempted.notified().await;
    *shared.pace.lock().await = pace(shared.options.rate);
    println!("{}", started.elapsed().as_secs_f64());
    let (since, before) = (Instant::now(), shared.opened.load(Relaxed));
    let closed = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    closed.await??;
    let again = shared.opened.load(Relaxed) - before;
    let rate = again as f64 / since.elapsed().as_secs_f64();
    println!(
        "{}",
        serde_json::json!({
            "opened": shared.opened.load(Relaxed),
            "admitted": shared.admitted.load(Relaxed),
            "rate": rate,
        })
    );
    if let Some(endpoint) = &shared.endpoint {
        // The hub learns that the links have ended, as with TCP.
        endpoint.close(0_u32.into(), b"");
        let _ = tokio::time::timeout(OPENING, endpoint.wait_idle()).await;
    }
    Ok(())
}
