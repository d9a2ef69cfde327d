//! The socket on which this agent tells the same host's root how its volumes are.
//!
//! A question is a line: `volumes`, or `explain ID`. The answer is [lines](super::lines), and the end of the connection.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener as BlockingListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::{DriverName, VolumeId};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::NodeVolumes;
use super::lines::{error_lines, write_lines};

/// The socket in the state directory.
pub(in super::super) const SOCKET: &str = "volumes.sock";

/// The most questions that are answered at the same time; others wait.
const MAX_QUESTIONS: usize = 4;

/// The most bytes of a question.
const MAX_QUESTION_BYTES: u64 = (VolumeId::MAX_BYTES + DriverName::MAX_BYTES + 16) as u64;

/// How long a question and its answer may take.
const BOUND: Duration = Duration::from_secs(10);

/// Pause after the host has refused to accept, for example because there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("--state-dir: cannot listen on {}: {source}; a path of a socket may have 107 bytes", path.display())]
pub(super) struct BindError {
    path: PathBuf,
    source: io::Error,
}

/// A socket on which nobody is answered yet.
#[derive(Debug)]
pub(super) struct Listener(UnixListener);

/// Makes the socket, in place of the one of the agent before, which has ended: the state directory has one user at a time.
pub(super) fn bind(directory: &Path) -> Result<Listener, BindError> {
    let path = directory.join(SOCKET);
    // In a directory that nobody else may enter, until its mode is set.
    let closed = directory.join(".new");
    let draft = closed.join("s");
    let bind = || {
        let _ = fs::remove_file(&draft);
        match DirBuilder::new().mode(0o700).create(&closed) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::set_permissions(&closed, PermissionsExt::from_mode(0o700))?;
        let socket = BlockingListener::bind(&draft)?;
        fs::set_permissions(&draft, PermissionsExt::from_mode(0o600))?;
        fs::rename(&draft, &path)?;
        fs::remove_dir(&closed)?;
        socket.set_nonblocking(true)?;
        UnixListener::from_std(socket)
    };
    bind().map(Listener).map_err(|source| BindError { path, source })
}

impl Listener {
    /// Answers questions for ever.
    pub(super) async fn serve(self, volumes: NodeVolumes) {
        let slots = Arc::new(Semaphore::new(MAX_QUESTIONS));
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await;
            match self.0.accept().await {
                Ok((stream, _)) => {
                    let volumes = volumes.clone();
                    tokio::spawn(async move {
                        let _slot = slot;
                        match timeout(BOUND, answer(stream, &volumes)).await {
                            Ok(Ok(())) => {}
                            Ok(Err(cause)) => tracing::debug!(%cause, "a question about volumes ended"),
                            Err(_) => tracing::debug!("a question about volumes took too long"),
                        }
                    });
                }
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept a connection to {SOCKET}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn answer(mut stream: UnixStream, volumes: &NodeVolumes) -> io::Result<()> {
    let mut question = String::new();
    BufReader::new((&mut stream).take(MAX_QUESTION_BYTES)).read_line(&mut question).await?;
    let reports = match question.strip_suffix('\n').map(|line| line.split_once(' ').unwrap_or((line, ""))) {
        Some(("volumes", "")) => volumes.reports(None).await,
        Some(("explain", id)) if !id.is_empty() => volumes.reports(Some(id)).await,
        _ => {
            let text =
                error_lines("ask with one line: volumes, or explain ID; the agent may be of another version");
            return stream.write_all(text.as_bytes()).await;
        }
    };
    let text = match reports {
        Ok(reports) => write_lines(&reports),
        Err(stopped) => error_lines(&stopped.to_string()),
    };
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
