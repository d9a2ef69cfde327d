//! The cable for TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::plan::{CableState, Plan, next_cut};
use crate::random::Random;

/// Largest number of concurrent connections. Further ones wait in the listener's backlog.
const CONNECTIONS: usize = 64;

/// Largest read, in bytes.
const CHUNK: usize = 16 << 10;

/// Largest number of reads in flight in one direction, at most 4 MiB. Beyond it the sender is held back.
const IN_FLIGHT: usize = 256;

/// How a connection ends when the cable is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// With RST.
    Reset,
    /// With FIN, as if each end had closed the connection.
    Close,
}

/// Forwards connections until the task is aborted.
pub(super) async fn forward(
    listener: TcpListener,
    target: SocketAddr,
    plan: Plan,
    mut state: watch::Receiver<CableState>,
) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut accepted = 0_u64;
    loop {
        let Ok(slot) = Arc::clone(&free).acquire_owned().await else { return };
        let Ok((near, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        if state.borrow_and_update().is_cut() {
            let _ = near.set_zero_linger();
            continue;
        }
        accepted += 1;
        let connection = Connection {
            cuts: state.borrow().cuts(),
            state: state.clone(),
            plan,
            random: [1, 2].map(|direction| Random::new(plan.seed ^ (accepted << 2 | direction))),
            cut: if accepted.is_multiple_of(2) { Cut::Close } else { Cut::Reset },
        };
        connections.spawn(async move {
            // Both ends observe an error as a closed connection.
            let _ = connection.run(near, target).await;
            drop(slot);
        });
    }
}

struct Connection {
    /// The number of cuts before the connection was accepted.
    cuts: u64,
    state: watch::Receiver<CableState>,
    plan: Plan,
    random: [Random; 2],
    cut: Cut,
}

impl Connection {
    async fn run(mut self, near: TcpStream, target: SocketAddr) -> io::Result<()> {
        let far = TcpStream::connect(target).await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (mut near_read, mut near_write) = near.into_split();
        let (mut far_read, mut far_write) = far.into_split();
        let [up, down] = self.random;
        let both = async {
            tokio::join!(
                copy(&mut near_read, &mut far_write, self.plan, up),
                copy(&mut far_read, &mut near_write, self.plan, down),
            )
        };
        tokio::select! {
            _ = both => {}
            _ = next_cut(&mut self.state, self.cuts) => match self.cut {
                Cut::Reset => {
                    near_write.as_ref().set_zero_linger()?;
                    far_write.as_ref().set_zero_linger()?;
                    // A drop of these halves would send FIN before the reset.
                    near_write.forget();
                    far_write.forget();
                }
                Cut::Close => {
                    let _ = tokio::join!(near_write.shutdown(), far_write.shutdown());
                }
            },
        }
        Ok(())
    }
}

/// Copies one direction of a connection, with delay and loss.
async fn copy(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    plan: Plan,
    mut random: Random,
) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    let reading = async move {
        let mut earliest = Instant::now();
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = from.read(&mut chunk).await?;
            chunk.truncate(read);
            chunk.shrink_to_fit();
            let mut due = Instant::now() + plan.delay;
            if random.happens(plan.loss_per_million) {
                due += plan.resent_after();
            }
            earliest = earliest.max(due);
            // An empty chunk is the end of the stream, which is delayed as well.
            if sender.send((earliest, chunk)).await.is_err() || read == 0 {
                return io::Result::Ok(());
            }
        }
    };
    let writing = async {
        while let Some((due, chunk)) = receiver.recv().await {
            tokio::time::sleep_until(due).await;
            if chunk.is_empty() {
                to.shutdown().await?;
            } else {
                to.write_all(&chunk).await?;
            }
        }
        io::Result::Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}
