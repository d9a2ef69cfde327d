//! A socket in a state directory that answers requests of root and of the process's own user.
//!
//! A request is one line. The answer is every byte up to the end of the connection; that to a command is text, and begins with
//! whether the command was executed.

use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edge_transport::advanced::{BoundSocket, bind_socket};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::process::Fatal;

/// The maximum number of requests that are answered at the same time; others wait.
const MAX_REQUESTS: usize = 4;

/// The maximum length of a request in bytes.
const MAX_REQUEST_BYTES: u64 = 1024;

/// The maximum length of an answer in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// The beginnings of the answers to commands that were executed, and that failed.
const OK_PREFIX: &str = "ok ";
const ERROR_PREFIX: &str = "error ";

/// The time limit for receiving a request, and for sending its answer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// The client's time limit for each read and each write.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after `accept` has failed, for example because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Creates the socket, with mode 0600.
///
/// # Errors
/// If the socket cannot be created.
pub fn bind(path: &Path) -> Result<BoundSocket, Fatal> {
    bind_socket(path).map_err(|error| Fatal::Input(format!("--state-dir: {error}")))
}

/// Answers requests until the future is dropped.
pub async fn serve<A, F>(socket: BoundSocket, answer: A)
where
    A: Fn(String) -> F + Clone + Send + 'static,
    F: Future<Output = Vec<u8>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await;
        let path = socket.path();
        match socket.listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let _slot = slot;
                    if let Err(cause) = handle(stream, answer).await {
                        tracing::debug!(%cause, "a request on a socket of the state directory failed");
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

/// Serves commands until the future is dropped. `execute` returns what the user reads.
pub async fn serve_commands<A, F, E>(socket: BoundSocket, execute: A)
where
    A: Fn(String) -> F + Clone + Send + 'static,
    F: Future<Output = Result<String, E>> + Send + 'static,
    E: Display,
{
    let answer = move |line| {
        let executed = execute(line);
        async move {
            let text = match executed.await {
                Ok(text) => format!("{OK_PREFIX}{text}\n"),
                Err(error) => format!("{ERROR_PREFIX}{error}\n"),
            };
            text.into_bytes()
        }
    };
    serve(socket, answer).await;
}

async fn handle<F>(mut stream: UnixStream, answer: impl Fn(String) -> F) -> io::Result<()>
where
    F: Future<Output = Vec<u8>>,
{
    let (asks, own) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if !may_ask(asks, own) {
        tracing::warn!(uid = asks, "refused a user that is neither root nor the user of this process");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = String::new();
    let mut request = BufReader::new((&mut stream).take(MAX_REQUEST_BYTES));
    timeout(TRANSFER_TIMEOUT, request.read_line(&mut line)).await??;
    // An incomplete request is dropped.
    let Some(request) = line.strip_suffix('\n') else { return Ok(()) };
    let answer = answer(request.to_owned()).await;
    timeout(TRANSFER_TIMEOUT, stream.write_all(&answer)).await??;
    stream.shutdown().await
}

const fn may_ask(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

/// Sends a request to the process that serves the socket, and returns the answer. Blocks.
///
/// # Errors
/// If no process serves the socket, or if it does not answer in time.
pub fn ask(path: &Path, request: &str) -> io::Result<Vec<u8>> {
    let mut stream = BlockingStream::connect(path)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Sends a command to `process`, which serves the socket, and returns what the user reads; `None` if no process serves it.
/// Blocks.
///
/// # Errors
/// If the command fails, or has no answer.
pub fn command(path: &Path, line: &str, process: &str) -> Result<Option<String>, Fatal> {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};

    let shown = path.display();
    let answer = match ask(path, line) {
        Ok(answer) => answer,
        Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => return Ok(None),
        Err(error) if error.kind() == PermissionDenied => {
            let text = format!("{shown}: only root and the user of {process} may use this socket: {error}");
            return Err(Fatal::Runtime(text));
        }
        Err(error) => return Err(Fatal::Runtime(format!("{shown}: no answer, repeat the command: {error}"))),
    };
    let answer = String::from_utf8_lossy(&answer);
    let text = answer.strip_suffix('\n').unwrap_or_default();
    match (text.strip_prefix(OK_PREFIX), text.strip_prefix(ERROR_PREFIX)) {
        (Some(text), _) => Ok(Some(text.to_owned())),
        (None, Some(text)) => Err(Fatal::Runtime(text.to_owned())),
        (None, None) => {
            let text = format!("{shown}: {process} ended before it answered; repeat the command");
            Err(Fatal::Runtime(text))
        }
    }
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
