//! A small HTTP/1 server in the binary's own runtime.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::SetRecorderError;
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::connections::Connections;
use super::{Status, page};

/// The time limit for a client to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the recorder aggregates its samples, which bounds their memory if no client scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Pause after `accept` has failed, for example because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The status server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The address is in use or not local.
    #[error("--http-endpoint: cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The metrics cannot be set up.
    #[error("--http-endpoint: cannot set up metrics: {0}")]
    Metrics(#[from] BuildError),
    /// The process has a metrics recorder already.
    #[error("--http-endpoint: cannot set up metrics: {0}")]
    Recorder(#[from] SetRecorderError<PrometheusRecorder>),
}

/// The running server, which stops on drop.
#[derive(Debug)]
pub struct StatusServer(JoinHandle<()>);

impl StatusServer {
    /// Starts the server, if there is an address. Installs the process's metrics recorder, so a process can start
    /// only one server.
    ///
    /// # Errors
    /// If the server cannot listen on the address, or if the process has a metrics recorder already.
    pub async fn start(
        address: Option<SocketAddr>,
        status: impl Status,
    ) -> Result<Option<Self>, StatusError> {
        let Some(address) = address else { return Ok(None) };
        let bind = |source| StatusError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let metrics = recorder()?;
        tracing::info!(%address, "status page, health and metrics");
        Ok(Some(Self(tokio::spawn(serve(listener, Arc::new(status), metrics, REQUEST_TIMEOUT)))))
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(
    listener: TcpListener,
    status: Arc<dyn Status>,
    metrics: PrometheusHandle,
    request_timeout: Duration,
) {
    let mut connections = Connections::default();
    let mut upkeep = tokio::time::interval(UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = upkeep.tick() => metrics.run_upkeep(),
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    let (status, metrics) = (Arc::clone(&status), metrics.clone());
                    let start = |asked| connection(stream, status, metrics, request_timeout, asked);
                    connections.add(client.ip(), start).await;
                }
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept an HTTP connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(
    stream: TcpStream,
    status: Arc<dyn Status>,
    metrics: PrometheusHandle,
    request_timeout: Duration,
    asked: Arc<AtomicBool>,
) {
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let response = answer(request.method(), request.uri().path(), &*status, || metrics.render());
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_timeout)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(cause) = served {
        tracing::debug!(%cause, "HTTP connection ended");
    }
}

fn answer(
    method: &Method,
    path: &str,
    status: &dyn Status,
    metrics: impl FnOnce() -> String,
) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    if method != Method::GET && method != Method::HEAD {
        let mut response = response(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "unsupported method; expected GET or HEAD\n".to_owned(),
        );
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/livez" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => match status.ready() {
            Ok(()) => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
            Err(reason) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
        },
        "/metrics" => {
            status.publish_metrics();
            response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics())
        }
        "/" => response(StatusCode::OK, "text/html; charset=utf-8", page::render(status)),
        _ => response(
            StatusCode::NOT_FOUND,
            TEXT,
            "not found; the paths are /, /livez, /readyz and /metrics\n".to_owned(),
        ),
    }
}

fn response(code: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}

/// Histogram of CSI calls; the name and the labels are those of the Kubernetes sidecars with `plugin` for `sidecar`.
const CALL_SECONDS: &str = "csi_plugin_operations_seconds";

/// Upper bounds of the buckets in seconds: those of the sidecars' histogram, with finer ones below for relayed
/// calls.
const CALL_SECONDS_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0,
    300.0, 600.0,
];

/// Installs the recorder of this process.
fn recorder() -> Result<PrometheusHandle, StatusError> {
    let calls = Matcher::Full(CALL_SECONDS.to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(calls, CALL_SECONDS_BUCKETS)?;
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;
    use crate::status::Fact;

    struct Waiting;

    impl Status for Waiting {
        fn name(&self) -> &'static str {
            "edge-test"
        }

        fn ready(&self) -> Result<(), String> {
            Err("no hub".to_owned())
        }

        fn facts(&self) -> Vec<Fact> {
            Vec::new()
        }

        fn publish_metrics(&self) {}
    }

    /// Starts a server in which no silent connection ends by itself during the test.
    async fn server() -> (StatusServer, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let never = Duration::from_secs(3600);
        (StatusServer(tokio::spawn(serve(listener, Arc::new(Waiting), metrics, never))), address)
    }

    /// Connects from an address of this host.
    async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    async fn answer_to(mut probe: TcpStream) -> String {
        let mut answer = String::new();
        let asked = async {
            probe.write_all(b"GET /livez HTTP/1.1\r\nHost: hub\r\n\r\n").await?;
            probe.read_to_string(&mut answer).await
        };
        tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap().unwrap();
        answer
    }

    fn is_alive(answer: &str) -> bool {
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n")
    }

    #[tokio::test]
    async fn silent_connections_do_not_delay_the_liveness_probe() {
        let (_server, address) = server().await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = answer_to(TcpStream::connect(address).await.unwrap()).await;
        assert!(is_alive(&answer), "{answer}");
        // The oldest one made room.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0);
        let newest = silent[99].try_read(&mut [0]).unwrap_err();
        assert_eq!(newest.kind(), std::io::ErrorKind::WouldBlock);
    }

    /// A client whose connections end connects again at once, before a slow probe has sent its request.
    #[tokio::test]
    async fn reconnects_of_one_address_do_not_end_the_probe_of_another() {
        const ATTACKER: [u8; 4] = [127, 0, 0, 2];
        let (_server, address) = server().await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(connect(ATTACKER, address).await);
        }
        let probe = connect([127, 0, 0, 1], address).await;
        for _ in 0..1000 {
            silent.push(connect(ATTACKER, address).await);
            // Its oldest connection ends for the new one.
            let _ = silent.remove(0).read(&mut [0]).await.unwrap();
        }
        let answer = answer_to(probe).await;
        assert!(is_alive(&answer), "{answer}");
    }

    #[test]
    fn each_path_has_its_answer() {
        for (method, path, code) in [
            (Method::GET, "/livez", 200),
            (Method::HEAD, "/livez", 200),
            (Method::GET, "/readyz", 503),
            (Method::GET, "/metrics", 200),
            (Method::GET, "/", 200),
            (Method::GET, "/etc/passwd", 404),
            (Method::POST, "/", 405),
        ] {
            let response = answer(&method, path, &Waiting, String::new);
            assert_eq!(response.status().as_u16(), code, "{method} {path}");
        }
    }
}
