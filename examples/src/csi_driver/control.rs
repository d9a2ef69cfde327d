//! The socket in the state directory on which root and the proxy's own user send commands.
//!
//! A command is a line, `decommission NODE` or `recommission NODE`. The answer is a line that begins with `ok` or `error`.

use std::path::Path;
use std::time::Duration;

use edge_transport::link::uds::{BoundSocket, bind_socket};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::decommission::{Commanded, DONE, Order, REFUSED};
use crate::process::Fatal;

/// The socket in the state directory.
pub(super) const SOCKET: &str = "control.sock";

/// Most bytes of a command: a verb and the name of a node.
const MAX_COMMAND: u64 = 512;

/// How long a command may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Pause after the host has refused to accept, for example because there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Opens the socket, with mode 0600.
pub(super) fn bind(directory: &Path) -> Result<BoundSocket, Fatal> {
    let bound = bind_socket(directory.join(SOCKET));
    bound.map_err(|error| Fatal::Input(format!("--state-dir: {error}")))
}

/// Takes commands, one after the other, until dropped.
pub(super) async fn serve(socket: BoundSocket, commands: mpsc::Sender<Commanded>) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        match socket.listener.accept().await {
            Ok((mut stream, _)) => {
                let answer = match stream.peer_cred() {
                    Ok(peer) if may_command(peer.uid(), own) => {
                        match timeout(ARRIVAL, read(&mut stream)).await {
                            Ok(Some(line)) => carried_out(&line, &commands).await,
                            Ok(None) | Err(_) => continue,
                        }
                    }
                    Ok(peer) => {
                        tracing::warn!(
                            uid = peer.uid(),
                            "a user who is neither root nor this process's sent a command"
                        );
                        Err(format!("user {} may not send commands; root and user {own} may", peer.uid()))
                    }
                    Err(error) => Err(format!("cannot tell who sends this command: {error}")),
                };
                let line = match answer {
                    Ok(text) => format!("{DONE}{text}\n"),
                    Err(text) => format!("{REFUSED}{text}\n"),
                };
                // Whoever has left can repeat the command.
                let _ = timeout(ARRIVAL, stream.write_all(line.as_bytes())).await;
            }
            Err(cause) => {
                tracing::warn!(%cause, "cannot accept a connection to {SOCKET}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

const fn may_command(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

/// A whole line, of at most [`MAX_COMMAND`] bytes.
async fn read(stream: &mut UnixStream) -> Option<String> {
    let mut line = String::new();
    BufReader::new(stream.take(MAX_COMMAND)).read_line(&mut line).await.ok()?;
    line.strip_suffix('\n').map(ToOwned::to_owned)
}

/// The text of the answer.
async fn carried_out(line: &str, commands: &mpsc::Sender<Commanded>) -> Result<String, String> {
    let order: Order = line.parse().map_err(|error| format!("{error}"))?;
    let (answer, answered) = oneshot::channel();
    let ending = "the proxy is ending; repeat the command when it runs again";
    commands.send(Commanded { order, answer }).await.map_err(|_| ending.to_owned())?;
    let done = answered.await.map_err(|_| ending.to_owned())?;
    done.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream as Blocking;

    use csi_proxy::NodeId;

    use super::*;

    #[test]
    fn root_and_the_own_user_may_send_commands() {
        assert!(may_command(0, 65532) && may_command(65532, 65532));
        assert!(!may_command(1000, 65532) && !may_command(65532, 0));
    }

    /// Answers each line, in a directory of its own.
    async fn answers(lines: &[&str]) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let socket = bind(directory.path()).unwrap();
        let path = directory.path().join(SOCKET);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (commands, mut commanded) = mpsc::channel::<Commanded>(1);
        let serving = tokio::spawn(serve(socket, commands));
        let obeying = tokio::spawn(async move {
            while let Some(Commanded { order, answer }) = commanded.recv().await {
                let _ = answer.send(Ok(format!("done: {order}")));
            }
        });
        let mut answers = Vec::new();
        for line in lines {
            let (line, path) = ((*line).to_owned(), path.clone());
            let ask = move || {
                let mut stream = Blocking::connect(path).unwrap();
                stream.write_all(line.as_bytes()).unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                answer
            };
            answers.push(tokio::task::spawn_blocking(ask).await.unwrap());
        }
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled() && !path.exists());
        obeying.await.unwrap();
        answers
    }

    #[tokio::test]
    async fn a_command_is_one_bounded_line_and_another_one_is_answered_after_a_bad_one() {
        let node = NodeId::new("edge-2").unwrap();
        let (long, good) = ("x".repeat(600), format!("decommission {node}\n"));
        let found =
            answers(&["forget edge-2\n", "decommission ../x\n", &long, "decommission edge-2", &good]).await;
        assert!(found[0].starts_with("error expected") && found[1].starts_with("error "), "{found:?}");
        assert_eq!(found[2..], ["", "", "ok done: decommission edge-2\n"]);
    }
}
