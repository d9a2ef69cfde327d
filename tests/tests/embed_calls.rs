//! The programs of `examples/embed` that carry calls, against hostpath-driver.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::{Path, PathBuf};
use std::process::Command;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::binaries;
use edge_csi_tests::certificates::Authority;
use edge_csi_tests::csi::{channel, controller, create_volume, ready};
use edge_csi_tests::port;
use edge_csi_tests::process::Process;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

const DRIVER: &str = "hostpath.csi.edge";

/// A driver, and the programs in front of it.
struct Programs {
    directory: TempDir,
    running: Vec<Process>,
}

impl Programs {
    fn with_driver() -> Self {
        let mut this = Self { directory: tempfile::tempdir().unwrap(), running: Vec::new() };
        let (socket, state) = (this.path("driver.sock"), this.path("volumes"));
        let driver = Arguments::driver(DRIVER, &socket, "edge-1", &state);
        this.start("hostpath-driver", driver);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("unix://{}", self.path(name).display())
    }

    fn start<A: AsRef<std::ffi::OsStr>>(&mut self, name: &str, arguments: impl IntoIterator<Item = A>) {
        self.running.push(Process::start(self.directory.path(), name, name, arguments));
    }

    fn process(&self, name: &str) -> &Process {
        self.running.iter().find(|process| process.name() == name).unwrap()
    }
}

/// Creates a volume on the socket, and returns what `csi_client` prints about it.
async fn used(socket: &Path) -> String {
    ready(socket).await;
    controller(socket).create_volume(create_volume("pvc-1")).await.unwrap();
    let url = format!("unix://{}", socket.display());
    let output = Command::new(binaries::path("csi_client")).arg(url).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The socket is usable as if the driver were behind it, over wss with certificates. The term is on the disk of the node.
#[tokio::test]
async fn hub_agent_and_socket_work_together_over_wss() {
    let mut programs = Programs::with_driver();
    let authority = Authority::new(programs.directory.path(), "ca");
    let tls = |names: &[&str]| {
        let files = authority.issue(names);
        [files.certificate, files.key, files.authority].map(|file| file.display().to_string())
    };
    let hub = format!("wss://127.0.0.1:{}", port::free());
    programs.start("hub", [hub.clone()].into_iter().chain(tls(&["127.0.0.1"])));
    programs.process("hub").logged(&format!("the hub listens on {hub}")).await;
    let (driver, state) = (format!("{DRIVER}={}", programs.url("driver.sock")), programs.path("terms"));
    let agent = [hub.clone(), "edge-1".to_owned(), driver, state.display().to_string()];
    programs.start("agent", agent.into_iter().chain(tls(&["edge-1"])));
    programs.process("agent").logged(&format!("edge-1 is connected, for driver {DRIVER}")).await;
    let socket = [hub, "edge-1".to_owned(), DRIVER.to_owned(), programs.url("csi.sock")];
    programs.start("socket", socket.into_iter().chain(tls(&["socket"])));
    programs.process("socket").logged(&format!("serving {}", programs.url("csi.sock"))).await;

    let printed = used(&programs.path("csi.sock")).await;
    assert!(printed.starts_with(DRIVER) && printed.ends_with("ready: true\n"), "{printed}");
    let term: u64 = std::fs::read_to_string(state.join(DRIVER)).unwrap().parse().unwrap();
    assert!(term > 0);
}

#[tokio::test]
async fn all_in_one_serves_the_driver_of_its_node() {
    let mut programs = Programs::with_driver();
    let files = Authority::new(programs.directory.path(), "ca").issue(&["socket", "edge-1", "127.0.0.1"]);
    let sockets = [programs.url("driver.sock"), programs.url("csi.sock")];
    let hub = format!("wss://127.0.0.1:{}", port::free());
    let tls = [files.certificate, files.key, files.authority].map(|file| file.display().to_string());
    let arguments = [DRIVER.to_owned()].into_iter().chain(sockets).chain([hub]).chain(tls);
    programs.start("all_in_one", arguments);
    programs.process("all_in_one").logged(&format!("serving {}", programs.url("csi.sock"))).await;
    let printed = used(&programs.path("csi.sock")).await;
    assert!(printed.starts_with(DRIVER) && printed.ends_with("ready: true\n"), "{printed}");
}

#[tokio::test]
async fn monitor_reports_a_call_without_a_required_field() {
    let mut programs = Programs::with_driver();
    let sockets = [programs.url("driver.sock"), programs.url("csi.sock")];
    programs.start("monitor", [DRIVER.to_owned()].into_iter().chain(sockets));
    let monitor = programs.process("monitor");
    monitor.logged(&format!("serving {}", programs.url("csi.sock"))).await;
    let socket = programs.path("csi.sock");
    ready(&socket).await;
    // The driver refuses it too.
    let mut node = NodeClient::new(channel(&socket));
    let refused = node.node_unpublish_volume(csi::NodeUnpublishVolumeRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    monitor.logged("violations of the spec").await;
}

/// Passes each POST for a path of a rule of KubeEdge to a port, as cloudcore and edgecore do together. Returns the address.
async fn rule(path: &'static str, port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut head = vec![0; 64 << 10];
            let length = near.read(&mut head).await.unwrap();
            let Some(rest) = head[..length].strip_prefix(format!("POST {path} ").as_bytes()) else {
                near.write_all(b"HTTP/1.0 404 Not Found\r\n\r\nRequest error").await.unwrap();
                continue;
            };
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            far.write_all(&[b"POST /csi ", rest].concat()).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
        }
    });
    address
}

#[tokio::test]
async fn own_kubeedge_reaches_the_driver_through_a_rule() {
    let mut programs = Programs::with_driver();
    let port = port::free();
    programs.start("own_kubeedge_node", [port.to_string(), DRIVER.to_owned(), programs.url("driver.sock")]);
    programs.process("own_kubeedge_node").logged(&format!("answering on 127.0.0.1:{port}")).await;
    let router = rule("/edge-1/default/csi", port).await;
    let socket = programs.url("csi.sock");
    programs.start("own_kubeedge_cloud", [&router, "/default/csi", "edge-1", DRIVER, &socket]);
    programs.process("own_kubeedge_cloud").logged(&format!("serving {socket}")).await;
    let printed = used(&programs.path("csi.sock")).await;
    assert!(printed.starts_with(DRIVER) && printed.ends_with("ready: true\n"), "{printed}");
}
