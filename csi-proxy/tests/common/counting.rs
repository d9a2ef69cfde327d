//! A driver that counts its executions and can hold them.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proxy::{Call, CallId, MethodPath, SocketAddress};
use prost::Message as _;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::{Raw, driver_name, in_time, node};

/// The maximum number of calls that the driver executes at once for one connection.
pub const MAX_STREAMS: u32 = 256;

/// Counts executions by method and subject, `CreateVolume pvc-1`. A call ends only with a permit.
#[derive(Debug, Clone)]
pub struct CountingDriver {
    executions: Arc<watch::Sender<BTreeMap<String, usize>>>,
    leave: Arc<Semaphore>,
    failures: Arc<Mutex<VecDeque<Status>>>,
}

impl CountingDriver {
    /// Serves on a socket in this directory, each call waiting for [`Self::release`].
    pub fn holding(directory: &Path) -> (Self, SocketAddress) {
        let driver = Self {
            executions: Arc::new(watch::Sender::default()),
            leave: Arc::new(Semaphore::new(0)),
            failures: Arc::default(),
        };
        let address = SocketAddress::new(socket(directory).to_str().unwrap()).unwrap();
        driver.serve(directory);
        (driver, address)
    }

    /// As [`Self::holding`], but calls do not wait.
    pub fn free(directory: &Path) -> (Self, SocketAddress) {
        let (driver, address) = Self::holding(directory);
        driver.release(1 << 20);
        (driver, address)
    }

    fn serve(&self, directory: &Path) {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket(directory)).unwrap());
        let server = tonic::transport::Server::builder().max_concurrent_streams(MAX_STREAMS);
        tokio::spawn(server.serve_with_incoming(self.clone(), incoming));
    }

    /// Lets this many calls end.
    pub fn release(&self, calls: usize) {
        self.leave.add_permits(calls);
    }

    /// The next released call fails with this status.
    pub fn fail_next(&self, status: Status) {
        self.failures.lock().unwrap().push_back(status);
    }

    /// The number of executions.
    pub fn executions(&self, what: &str) -> usize {
        self.executions.borrow().get(what).copied().unwrap_or_default()
    }

    /// All executions.
    pub fn all(&self) -> BTreeMap<String, usize> {
        self.executions.borrow().clone()
    }

    /// Waits for this number of executions.
    pub async fn wait_for_executions(&self, what: &str, times: usize) {
        let mut executions = self.executions.subscribe();
        let executed = executions.wait_for(|all| all.get(what).copied().unwrap_or_default() >= times);
        in_time(executed).await.unwrap();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("driver.sock")
}

/// The first field of the requests that are used here is the name or the id.
#[derive(Clone, PartialEq, prost::Message)]
struct FirstField {
    #[prost(string, tag = "1")]
    subject: String,
}

#[derive(Debug, Clone)]
struct Running {
    driver: CountingDriver,
    method: String,
}

impl tonic::server::UnaryService<Bytes> for Running {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let Self { driver, method } = self.clone();
        Box::pin(async move {
            let body = request.into_inner();
            let subject = FirstField::decode(body).map(|request| request.subject).unwrap_or_default();
            let what = format!("{method} {subject}");
            driver.executions.send_modify(|all| *all.entry(what).or_default() += 1);
            driver.leave.acquire().await.unwrap().forget();
            if let Some(status) = driver.failures.lock().unwrap().pop_front() {
                return Err(status);
            }
            let answer = match method.as_str() {
                "CreateVolume" => {
                    let volume = csi::Volume { volume_id: format!("vol-{subject}"), ..Default::default() };
                    csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into()
                }
                _ => Bytes::new(),
            };
            Ok(Response::new(answer))
        })
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for CountingDriver {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let running = Running { driver: self.clone(), method };
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(running, request).await) })
    }
}

impl tonic::server::NamedService for CountingDriver {
    const NAME: &'static str = "any";
}

/// A call of the controller with this request.
pub fn call(method: &str, request: &impl prost::Message) -> Call {
    let path = MethodPath::new(format!("/csi.v1.Controller/{method}")).unwrap();
    Call::new(CallId::new(), node(), driver_name(), path, request.encode_to_vec().into())
}

/// A CreateVolume of this name.
pub fn create(name: &str) -> Call {
    call("CreateVolume", &csi::CreateVolumeRequest { name: name.to_owned(), ..Default::default() })
}

/// A DeleteVolume of this id.
pub fn delete(id: &str) -> Call {
    call("DeleteVolume", &csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() })
}
