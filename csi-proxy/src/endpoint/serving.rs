//! A socket that is being served, and its end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connection::LONGEST;
use super::front::Front;
use super::{connection, socket};
use crate::address::SocketAddress;
use crate::driver_info::View;

/// Most connections at once. More wait in the socket's queue.
const MAX_CONNECTIONS: usize = 128;

/// Pause after a failed `accept`, which is usually the limit of open files.
const AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(100);

/// How long the last answers may take to leave, once every call that is still open is told that nobody waits for it.
const FAREWELL: Duration = Duration::from_secs(1);

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drained {
    /// Every open call was answered.
    All,
    /// The time was over before; calls that were still open were told so ([`Fault::Draining`](crate::Fault::Draining)). Work
    /// at drivers goes on.
    Some,
}

/// A socket that is being served. Dropping this does not stop it.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddress,
    stop: Arc<watch::Sender<Option<Instant>>>,
    task: JoinHandle<Drained>,
    front: Arc<Front>,
}

impl Serving {
    /// The socket.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }

    /// How the start-up answers stand.
    #[must_use]
    pub fn startup(&self) -> View {
        self.front.startup()
    }

    /// Asks the driver again now for what is answered locally. For an agent's node that has just come back.
    pub fn refresh(&self) {
        self.front.refresh();
    }

    /// The node is there. If its driver is not ready by what is known, it is asked again at once, at most once a second: for whoever
    /// hears which nodes come, as from a hub.
    pub fn online(&self) {
        self.front.online();
    }

    /// Removes the socket, takes no more calls, and waits up to `bound` for the answers of those that are open. Then those are
    /// answered `UNAVAILABLE`, for which it takes up to a second more, if a caller does not read.
    pub async fn shutdown(self, bound: Duration) -> Drained {
        self.stop.send_replace(Some(Instant::now() + bound.min(LONGEST)));
        self.task.await.unwrap_or(Drained::Some)
    }
}

pub(super) fn start(listener: UnixListener, address: SocketAddress, front: Front) -> Serving {
    tracing::info!(%address, "serving CSI");
    let front = Arc::new(front);
    let stop = Arc::new(watch::Sender::new(None));
    let task = tokio::spawn(run(listener, address.clone(), Arc::clone(&front), Arc::clone(&stop)));
    Serving { address, stop, task, front }
}

async fn run(
    listener: UnixListener,
    address: SocketAddress,
    front: Arc<Front>,
    stop: Arc<watch::Sender<Option<Instant>>>,
) -> Drained {
    // Does not end by itself, since the sender is here too.
    let mut stopping = stop.subscribe();
    let file = socket::file_id(address.path());
    let learning = front.learn();
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
                let (front, stopping) = (Arc::clone(&front), stopping.clone());
                connections.spawn(async move {
                    connection::serve(socket, front, stopping).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%address, %error, "cannot accept; trying again");
                sleep(AFTER_FAILED_ACCEPT).await;
            }
        }
    };
    drop(listener);
    if file.is_some() && file == socket::file_id(address.path()) {
        // If it is gone by now, all the better.
        let _ = std::fs::remove_file(address.path());
    }
    learning.abort();
    // A disk that hangs must not hold up the end.
    let _ = timeout(FAREWELL, front.settle()).await;
    while connections.try_join_next().is_some() {}
    if connections.is_empty() {
        return Drained::All;
    }
    let mut all = pin!(async { while connections.join_next().await.is_some() {} });
    tokio::select! {
        // First, since open calls end at that moment too.
        biased;
        () = sleep_until(end.unwrap_or_else(Instant::now)) => {
            tracing::warn!(%address, "calls were still open when the time to drain was over");
            // If not all are told within this, those that do not read are left.
            let _ = timeout(FAREWELL, all).await;
            Drained::Some
        }
        () = &mut all => Drained::All,
    }
}

async fn accept(
    listener: &UnixListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::UnixStream, tokio::sync::OwnedSemaphorePermit)> {
    // Never closed, so this only ever waits for room.
    let slot = Arc::clone(slots).acquire_owned().await.map_err(std::io::Error::other)?;
    let (socket, _) = listener.accept().await?;
    Ok((socket, slot))
}
