//! Concurrent callers that create and delete volumes, while something else changes.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::csi::{controller, delete_volume, within};

/// Timeout of a sidecar's call.
const CALL: Duration = Duration::from_secs(15);

/// How long a call is repeated, and how often.
const REPEATED: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// What callers have seen.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Volumes that were created and deleted.
    pub volumes: usize,
    /// Calls that were made again, since they ended without a final status.
    pub repeated: usize,
    /// Errors that were final, or repeated for a minute.
    pub failed: Vec<String>,
    /// The time of each call, with its repetitions, in increasing order.
    pub times: Vec<Duration>,
}

impl Report {
    fn merge(&mut self, other: Self) {
        self.volumes += other.volumes;
        self.repeated += other.repeated;
        self.failed.extend(other.failed);
        self.times.extend(other.times);
    }

    /// The 99th percentile of the times.
    #[must_use]
    pub fn p99(&self) -> Duration {
        let index = self.times.len().saturating_mul(99) / 100;
        self.times.get(index).or_else(|| self.times.last()).copied().unwrap_or_default()
    }

    /// The longest time.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }
}

/// Running callers.
#[derive(Debug)]
pub struct Callers {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Report>,
    /// One permit for each caller that is done with its first volume.
    begun: Arc<Semaphore>,
}

/// The clients of a caller, one for each proxy. One of the proxies answers.
#[derive(Debug, Clone)]
struct Clients {
    all: Vec<ControllerClient<Channel>>,
    /// The number of the client that is used next, of all callers.
    next: Arc<AtomicUsize>,
}

impl Callers {
    /// Starts this number of callers in the current runtime. Each creates a volume with `request`, which gets its name, deletes
    /// it, and begins again. After an error that is not final it calls the next socket.
    pub fn start(
        callers: usize,
        sockets: &[&Path],
        request: impl Fn(&str) -> csi::CreateVolumeRequest + Clone + Send + Sync + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (next, begun) = (Arc::default(), Arc::new(Semaphore::new(0)));
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let (stop, request) = (Arc::clone(&stop), request.clone());
            let mut begun = Some(Arc::clone(&begun));
            let all = sockets.iter().map(|socket| controller(socket)).collect();
            let clients = Clients { all, next: Arc::clone(&next) };
            tasks.spawn(async move {
                let mut report = Report::default();
                while !stop.load(Ordering::Relaxed) && report.failed.is_empty() {
                    let request = request(&format!("pvc-{caller}-{}", report.volumes));
                    clients.pair(request, &mut report).await;
                    if let Some(begun) = begun.take() {
                        begun.add_permits(1);
                    }
                }
                report
            });
        }
        Self { stop, tasks, begun }
    }

    /// Waits until each caller is done with its first volume, so that what follows is under calls.
    pub async fn under_way(&self) {
        let all = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        drop(self.begun.acquire_many(all).await);
    }

    /// Lets the callers finish their last volume.
    pub async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        self.tasks.join_all().await.into_iter().for_each(|of_caller| report.merge(of_caller));
        report.times.sort_unstable();
        report
    }
}

/// Creates one volume over a socket, and deletes it.
pub async fn pair(socket: PathBuf, request: csi::CreateVolumeRequest) -> Report {
    let clients = Clients { all: vec![controller(&socket)], next: Arc::default() };
    let mut report = Report::default();
    clients.pair(request, &mut report).await;
    report.times.sort_unstable();
    report
}

impl Clients {
    async fn pair(&self, request: csi::CreateVolumeRequest, report: &mut Report) {
        let create = |mut client: ControllerClient<Channel>| {
            let request = within(CALL, request.clone());
            async move { client.create_volume(request).await.map(Response::into_inner) }
        };
        let Some(created) = self.call(create, report).await else { return };
        let id = created.volume.map(|volume| volume.volume_id).unwrap_or_default();
        let delete = |mut client: ControllerClient<Channel>| {
            let request = within(CALL, delete_volume(&id));
            async move { client.delete_volume(request).await }
        };
        if self.call(delete, report).await.is_some() {
            report.volumes += 1;
        }
    }

    /// Makes a call until it succeeds, or fails for ever.
    async fn call<T, F>(
        &self,
        call: impl Fn(ControllerClient<Channel>) -> F,
        report: &mut Report,
    ) -> Option<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let (began, mut pause) = (Instant::now(), tokio::time::interval(PAUSE));
        loop {
            pause.tick().await;
            let number = self.next.load(Ordering::Relaxed);
            let status = match call(self.all[number % self.all.len()].clone()).await {
                Ok(answer) => {
                    report.times.push(began.elapsed());
                    return Some(answer);
                }
                Err(status) => status,
            };
            if is_final(&status) || began.elapsed() > REPEATED {
                report.failed.push(format!("after {:.1?}: {status}", began.elapsed()));
                return None;
            }
            report.repeated += 1;
            // One of the callers moves all of them.
            let _ = self.next.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Whether a sidecar would take this as the driver's answer. An error with a source is the connection's.
fn is_final(status: &Status) -> bool {
    let transient = [Code::Unavailable, Code::Aborted, Code::DeadlineExceeded, Code::Cancelled];
    status.source().is_none() && !transient.contains(&status.code())
}
