//! A closed loop: a number of callers on one connection, each waiting for its answer before the next call.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use prost::Message;
use serde::Serialize;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::bytes_codec::BytesCodec;
use crate::payload;

const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const DELETE: &str = "/csi.v1.Controller/DeleteVolume";
const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const LIST: &str = "/csi.v1.Controller/ListVolumes";
const PROBE: &str = "/csi.v1.Identity/Probe";

/// The upper bound of the latency histogram, in nanoseconds.
const MAX_LATENCY_NANOS: u64 = 600_000_000_000;

/// Time limit for the hanging call after the driver has released it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The calls that a caller repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum Work {
    /// One `CreateVolume` of a new name.
    CreateVolume,
    /// A `CreateVolume` of a new name, then its `DeleteVolume`; counted as two calls.
    CreateDelete,
    /// One `ControllerPublishVolume` of a new volume.
    Publish,
    /// One `ListVolumes`, whose answer may be large.
    ListVolumes,
    /// One `Probe`.
    Probe,
}

/// An error that ends a load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The socket could not be reached.
    #[error("{endpoint}: {source}")]
    Connect {
        /// The socket.
        endpoint: String,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// A call ended with a status other than OK.
    #[error("{method}: {status}")]
    Call {
        /// The method's path.
        method: &'static str,
        /// The received status.
        status: Box<Status>,
    },
    /// The response does not decode as the method's message.
    #[error("{method}: the answer cannot be decoded: {source}")]
    Decode {
        /// The method's path.
        method: &'static str,
        /// The cause.
        source: prost::DecodeError,
    },
    /// The call that should hang was answered, so the others were not measured beside a hanging call.
    #[error("the call for volume {0} was answered; expected it to hang: is bench-driver the driver?")]
    NotHung(String),
    /// The call that should hang at the driver hangs before it, since the driver's release does not end it.
    #[error(
        "the call for volume {0} was not answered within 10 s after the driver released all hanging calls"
    )]
    StillHung(String),
    /// A caller's task ended early.
    #[error("a caller ended early: {0}")]
    Caller(#[from] tokio::task::JoinError),
}

/// The measurements with one number of callers. Latencies are in microseconds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// The number of callers.
    pub in_flight: usize,
    /// Calls that were answered with OK.
    pub calls: u64,
    /// Calls that were answered with another status (only with `tolerate`).
    pub errors: u64,
    /// Calls per second.
    pub rate: f64,
    /// Median latency.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Figures {
    /// Computes the figures from the latencies, in nanoseconds, of the calls that were answered with OK.
    #[must_use]
    pub fn of(in_flight: usize, length: Duration, errors: u64, latencies: &Histogram<u64>) -> Self {
        let micros = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let calls = latencies.len();
        Self {
            in_flight,
            calls,
            errors,
            rate: if length.is_zero() { 0.0 } else { calls as f64 / length.as_secs_f64() },
            p50: micros(0.5),
            p99: micros(0.99),
            p999: micros(0.999),
        }
    }
}

/// The load to generate.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Plan {
    /// The calls that each caller repeats.
    pub work: Work,
    /// The number of callers.
    pub in_flight: usize,
    /// The duration of the measurement. A warm-up of a fifth of it, at most a second, precedes the measurement. Zero: one call
    /// of each caller.
    pub length: Duration,
    /// Count failed calls and continue instead of ending with the first.
    pub tolerate: bool,
    /// Let one more `ControllerPublishVolume` hang at the driver, which must be [`FixedAnswer`](crate::driver::FixedAnswer).
    pub beside_hung: bool,
}

impl Plan {
    /// Creates a plan that ends with the first failed call.
    #[must_use]
    pub const fn new(work: Work, in_flight: usize, length: Duration) -> Self {
        Self { work, in_flight, length, tolerate: false, beside_hung: false }
    }
}

/// Connects to `unix:///path` (or any address that tonic accepts).
///
/// # Errors
/// Returns an error if the endpoint cannot be reached.
pub async fn connect(endpoint: &str) -> Result<Channel, LoadError> {
    let failed = |source| LoadError::Connect { endpoint: endpoint.to_owned(), source };
    Endpoint::from_shared(endpoint.to_owned()).map_err(failed)?.connect().await.map_err(failed)
}

/// Sends one `CreateVolume` with [`payload::request`], for the volume with this number.
///
/// # Errors
/// Returns an error if the connection or the call fails.
pub async fn create_volume(channel: &Channel, number: u64) -> Result<(), LoadError> {
    let request = payload::numbered(&payload::request(), number);
    answer(&mut Grpc::new(channel.clone()), CREATE, request).await.map(drop)
}

/// Sends one unary call, and returns the answer's message.
///
/// # Errors
/// If the connection or the call fails.
pub async fn answer(grpc: &mut Grpc<Channel>, method: &'static str, body: Bytes) -> Result<Bytes, LoadError> {
    grpc.ready()
        .await
        .map_err(|source| LoadError::Connect { endpoint: "the connection".to_owned(), source })?;
    let answer = grpc.unary(Request::new(body), PathAndQuery::from_static(method), BytesCodec).await;
    Ok(answer.map_err(|status| LoadError::Call { method, status: Box::new(status) })?.into_inner())
}

/// Runs a plan to its end.
///
/// # Errors
/// Returns the error of the first failed call, unless the plan tolerates it, or an error if the call that should hang did not
/// hang at the driver.
pub async fn run(channel: &Channel, plan: Plan) -> Result<Figures, LoadError> {
    if !plan.beside_hung {
        return callers(channel, plan).await;
    }
    let id = std::process::id();
    let held = format!("{}{id}", payload::HANG_PREFIX);
    let hung = tokio::spawn({
        let (mut grpc, request) = (Grpc::new(channel.clone()), payload::publish_volume(&held));
        async move { answer(&mut grpc, PUBLISH, request).await }
    });
    let figures = callers(channel, plan).await?;
    if hung.is_finished() {
        hung.await??;
        return Err(LoadError::NotHung(held));
    }
    let release = payload::publish_volume(&format!("{}{id}", payload::RELEASE_PREFIX));
    answer(&mut Grpc::new(channel.clone()), PUBLISH, release).await?;
    // Only a call that hangs at the driver itself is released.
    tokio::time::timeout(RELEASE_TIMEOUT, hung).await.map_err(|_| LoadError::StillHung(held))???;
    Ok(figures)
}

/// A caller that makes its calls one by one, when it is asked to.
#[derive(Debug)]
pub struct Steps {
    caller: Caller,
    tally: Tally,
}

impl Steps {
    /// Creates a caller on this connection.
    #[must_use]
    pub fn new(channel: &Channel, work: Work) -> Self {
        Self { caller: Caller::new(channel, work, 0), tally: Tally::new() }
    }

    /// Makes the calls of one turn.
    ///
    /// # Errors
    /// If a call fails.
    pub async fn next(&mut self) -> Result<(), LoadError> {
        self.caller.turn(Instant::now(), &mut self.tally).await
    }
}

async fn callers(channel: &Channel, plan: Plan) -> Result<Figures, LoadError> {
    let from = Instant::now() + (plan.length / 5).min(Duration::from_secs(1));
    let until = from + plan.length;
    let mut callers = Vec::with_capacity(plan.in_flight);
    for number in 0..plan.in_flight {
        let caller = Caller::new(channel, plan.work, number);
        callers.push(tokio::spawn(caller.turns(from, until, plan.tolerate)));
    }
    let mut all = Tally::new();
    for caller in callers {
        let tally = caller.await??;
        all.errors += tally.errors;
        all.latencies += tally.latencies;
    }
    Ok(Figures::of(plan.in_flight, plan.length, all.errors, &all.latencies))
}

/// Returns an empty histogram of latencies in nanoseconds.
#[must_use]
#[allow(clippy::expect_used, reason = "the bounds are constants that the histogram accepts")]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, 3).expect("valid bounds")
}

#[derive(Debug)]
struct Tally {
    latencies: Histogram<u64>,
    errors: u64,
}

impl Tally {
    fn new() -> Self {
        Self { latencies: histogram(), errors: 0 }
    }
}

#[derive(Debug)]
struct Caller {
    grpc: Grpc<Channel>,
    work: Work,
    number: usize,
    turn: u64,
    request: Bytes,
}

impl Caller {
    fn new(channel: &Channel, work: Work, number: usize) -> Self {
        let request = match work {
            Work::Publish => payload::publish(),
            _ => payload::request(),
        };
        Self { grpc: Grpc::new(channel.clone()), work, number, turn: 0, request }
    }

    async fn turns(mut self, from: Instant, until: Instant, tolerate: bool) -> Result<Tally, LoadError> {
        let mut tally = Tally::new();
        loop {
            match self.turn(from, &mut tally).await {
                Err(LoadError::Call { .. }) if tolerate => tally.errors += 1,
                other => other?,
            }
            if Instant::now() >= until {
                return Ok(tally);
            }
        }
    }

    async fn turn(&mut self, from: Instant, tally: &mut Tally) -> Result<(), LoadError> {
        self.turn += 1;
        match self.work {
            Work::CreateVolume => {
                let request = payload::numbered(&self.request, (self.number as u64) << 32 | self.turn);
                self.call(CREATE, request, from, tally).await?;
            }
            Work::Publish => {
                let request = payload::numbered(&self.request, (self.number as u64) << 32 | self.turn);
                self.call(PUBLISH, request, from, tally).await?;
            }
            Work::ListVolumes => {
                self.call(LIST, Bytes::new(), from, tally).await?;
            }
            Work::Probe => {
                self.call(PROBE, Bytes::new(), from, tally).await?;
            }
            Work::CreateDelete => {
                let name = format!("load-{}-{}-{}", std::process::id(), self.number, self.turn);
                let mut request = payload::create_volume(&name);
                // Any driver must accept the request, so fields that only the test driver knows are left out.
                request.parameters.clear();
                request.secrets.clear();
                request.accessibility_requirements = None;
                let created = self.call(CREATE, request.encode_to_vec().into(), from, tally).await?;
                let created = csi_proto::csi::v1::CreateVolumeResponse::decode(created)
                    .map_err(|source| LoadError::Decode { method: CREATE, source })?;
                let request = csi_proto::csi::v1::DeleteVolumeRequest {
                    volume_id: created.volume.unwrap_or_default().volume_id,
                    ..Default::default()
                };
                self.call(DELETE, request.encode_to_vec().into(), from, tally).await?;
            }
        }
        Ok(())
    }

    async fn call(
        &mut self,
        method: &'static str,
        body: Bytes,
        from: Instant,
        tally: &mut Tally,
    ) -> Result<Bytes, LoadError> {
        let started = Instant::now();
        let answer = answer(&mut self.grpc, method, body).await?;
        if started >= from {
            tally
                .latencies
                .saturating_record(u64::try_from(started.elapsed().as_nanos()).unwrap_or(MAX_LATENCY_NANOS));
        }
        Ok(answer)
    }
}
