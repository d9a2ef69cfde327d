//! The accept loop of a socket and its shutdown.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Endpoint;
use super::connection::{self, MAX_WAIT};
use super::service::EndpointService;
use super::socket::Bound;
use crate::address::SocketAddress;
use crate::call::Drained;
use crate::driver_info::StartupView;

/// The maximum number of connections. Further connections wait in the backlog of the socket.
const MAX_CONNECTIONS: usize = 128;

/// The pause after a failed `accept`, usually caused by the limit of open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long the last answers may take to be written, once every open call has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle to a socket that is being served. Dropping the handle does not stop the server.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddress,
    stop: Arc<watch::Sender<Option<Instant>>>,
    task: JoinHandle<Drained>,
    service: Arc<EndpointService>,
}

impl Serving {
    /// The address of the socket.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }

    /// The status of the start-up answers.
    #[must_use]
    pub fn startup(&self) -> StartupView {
        self.service.current().startup()
    }

    /// Makes an endpoint answer in place of a [standby](super::Endpoint::standby): on its connections, from the next call. Loads
    /// the stored driver info first. Has no effect on an endpoint that is active already.
    pub async fn activate(&self, endpoint: Endpoint) {
        endpoint.service.load().await;
        self.service.activate(endpoint.service);
    }

    /// Refreshes the start-up answers now, for an agent that has just reconnected.
    pub fn refresh(&self) {
        self.service.current().refresh();
    }

    /// Reports that the node is online, for example from a hub's presence. If the driver is not ready, the
    /// start-up answers are refreshed at once, at most once a second.
    pub fn online(&self) {
        self.service.current().online();
    }

    /// Removes the socket, accepts no more calls, and waits up to `bound` for the answers of open calls. The remaining
    /// calls end with `UNAVAILABLE`, which takes up to a second more if a caller does not read.
    pub async fn shutdown(self, bound: Duration) -> Drained {
        self.stop.send_replace(Some(Instant::now() + bound.min(MAX_WAIT)));
        self.task.await.unwrap_or(Drained::Some)
    }
}

pub(super) fn start(bound: Bound, address: SocketAddress, service: EndpointService) -> Serving {
    tracing::info!(%address, "serving CSI");
    let service = Arc::new(service);
    let stop = Arc::new(watch::Sender::new(None));
    let task = tokio::spawn(run(bound, address.clone(), Arc::clone(&service), Arc::clone(&stop)));
    Serving { address, stop, task, service }
}

async fn run(
    Bound { listener, file }: Bound,
    address: SocketAddress,
    service: Arc<EndpointService>,
    stop: Arc<watch::Sender<Option<Instant>>>,
) -> Drained {
    // `stopping` is never closed, since this function holds the sender too.
    let mut stopping = stop.subscribe();
    let refresher = service.spawn_refresher();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let end = loop {
        let accepted = tokio::select! {
            biased;
            end = stopping.wait_for(Option::is_some) => match end {
                Ok(end) => break *end,
                Err(_) => break None,
            },
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((socket, slot)) => {
                let (service, stopping) = (Arc::clone(&service), stopping.clone());
                connections.spawn(async move {
                    connection::serve(socket, service, stopping).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%address, %error, "accept failed, retrying");
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    };
    drop(listener);
    refresher.abort();
    let closing =
        join(spawn_blocking(move || file.remove()), async { service.current().save_driver_info().await });
    // A hanging disk must not delay the shutdown.
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
    while connections.try_join_next().is_some() {}
    if connections.is_empty() {
        return Drained::All;
    }
    let mut remaining = pin!(async { while connections.join_next().await.is_some() {} });
    tokio::select! {
        // Polled first, since open calls end at the same moment.
        biased;
        () = sleep_until(end.unwrap_or_else(Instant::now)) => {
            tracing::warn!(%address, "drain timeout expired with open calls");
            // Calls whose caller does not read are dropped.
            let _ = timeout(CLOSE_TIMEOUT, remaining).await;
            Drained::Some
        }
        () = &mut remaining => Drained::All,
    }
}

async fn accept(
    listener: &UnixListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::UnixStream, tokio::sync::OwnedSemaphorePermit)> {
    // The semaphore is never closed, so this only waits for a slot.
    let slot = Arc::clone(slots).acquire_owned().await.map_err(std::io::Error::other)?;
    let (socket, _) = listener.accept().await?;
    Ok((socket, slot))
}
