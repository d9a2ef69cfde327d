//! A socket in a state directory, on which root and the process's own user ask it something.
//!
//! A question is a line. What the process answers is bytes, up to the end of the connection.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edge_transport::link::uds::{BoundSocket, bind_socket};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::process::Fatal;

/// The most questions that are answered at the same time; others wait.
const MAX_QUESTIONS: usize = 4;

/// The most bytes of a question.
const MAX_QUESTION_BYTES: u64 = 1024;

/// The most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// How long a question may take to arrive, and its answer to be read.
const ARRIVAL: Duration = Duration::from_secs(5);

/// How long a process has to answer, for each part of what it says.
const BOUND: Duration = Duration::from_secs(30);

/// Pause after `accept` has failed, for example because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the socket, with mode 0600.
///
/// # Errors
/// If it cannot be made.
pub fn bind(path: &Path) -> Result<BoundSocket, Fatal> {
    bind_socket(path).map_err(|error| Fatal::Input(format!("--state-dir: {error}")))
}

/// Answers questions until dropped.
pub async fn serve<A, F>(socket: BoundSocket, answer: A)
where
    A: Fn(String) -> F + Clone + Send + 'static,
    F: Future<Output = Vec<u8>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(MAX_QUESTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await;
        let path = socket.file.path();
        match socket.listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let _slot = slot;
                    if let Err(cause) = converse(stream, answer).await {
                        tracing::debug!(%cause, "a question on a socket of the state directory has ended");
                    }
                });
            }
            Err(cause) => {
                tracing::warn!(%cause, "cannot accept a connection to {}", path.display());
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse<F>(mut stream: UnixStream, answer: impl Fn(String) -> F) -> io::Result<()>
where
    F: Future<Output = Vec<u8>>,
{
    let (asks, own) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if !may_ask(asks, own) {
        tracing::warn!(uid = asks, "refused a user that is neither root nor the user of this process");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = String::new();
    let mut question = BufReader::new((&mut stream).take(MAX_QUESTION_BYTES));
    timeout(ARRIVAL, question.read_line(&mut line)).await??;
    // An incomplete request is dropped.
    let Some(question) = line.strip_suffix('\n') else { return Ok(()) };
    let answer = answer(question.to_owned()).await;
    timeout(ARRIVAL, stream.write_all(&answer)).await??;
    stream.shutdown().await
}

const fn may_ask(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

/// Asks the process that has the socket. Blocks.
///
/// # Errors
/// If no process has it, or does not answer in time.
pub fn ask(path: &Path, question: &str) -> io::Result<Vec<u8>> {
    let mut stream = BlockingStream::connect(path)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_may_ask() {
        assert!(may_ask(0, 65532) && may_ask(65532, 65532));
        assert!(!may_ask(1000, 65532) && !may_ask(65532, 0));
    }
}
