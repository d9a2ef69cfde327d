//! The relays of the examples: message buses, and a program with hub, agent and socket.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::csi::ready;
use edge_csi_tests::port;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;

use super::error::E2eError;
use super::on_runtime;
use super::setup::Setup;

/// An example that relays calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Embedded {
    /// `nats-relay` over a NATS server.
    Nats,
    /// `mqtt-relay` over mosquitto.
    Mqtt,
    /// `all_in_one`.
    AllInOne,
}

impl Embedded {
    /// Returns the processes of this workspace, in the order of their start.
    pub(crate) const fn own_processes(self) -> &'static [&'static str] {
        match self {
            Self::Nats | Self::Mqtt => &["agent", "proxy"],
            Self::AllInOne => &["proxy"],
        }
    }

    /// Starts the example in front of a driver. Returns its processes and the socket for sidecars.
    pub(crate) fn start(self, driver: &Path, setup: Setup<'_>) -> Result<(Vec<Process>, PathBuf), E2eError> {
        let socket = setup.scratch.join("bus.sock");
        let mut running = match self {
            Self::Nats => over(&setup.components.nats_relay, nats(setup)?, driver, &socket, setup)?,
            Self::Mqtt => over(&setup.components.mqtt_relay, mosquitto(setup)?, driver, &socket, setup)?,
            Self::AllInOne => {
                let hub = format!("wss://127.0.0.1:{}", port::free());
                let files = setup.certificates.issue(&["socket", NODE, "127.0.0.1"]);
                let mut program = Command::new(&setup.components.all_in_one);
                program.args([DRIVER.to_owned(), unix(driver), unix(&socket), hub]);
                program.args([files.certificate, files.key, files.authority]);
                vec![Process::spawn(setup.logs, "proxy", &mut program)?]
            }
        };
        if let Some(proxy) = running.last_mut() {
            proxy.ready("its socket", || wait::accepts(&socket))?;
        }
        // The driver's answers to start-up calls have arrived.
        on_runtime(async {
            ready(&socket).await;
            Ok(())
        })?;
        Ok((running, socket))
    }
}

/// Starts both ends of a bus, with sealed payloads.
fn over(
    program: &Path,
    (server, port): (Process, u16),
    driver: &Path,
    socket: &Path,
    setup: Setup<'_>,
) -> Result<Vec<Process>, E2eError> {
    let key = written(setup, "key", &"k".repeat(32))?;
    let end = |name, option, url: &Path| {
        let arguments = Arguments::new()
            .flag(name)
            .pair("--server", format!("127.0.0.1:{port}"))
            .pair("--drivername", DRIVER)
            .pair("--key", &key)
            .pair(option, unix(url));
        Process::spawn(setup.logs, name, Command::new(program).args(arguments))
    };
    Ok(vec![server, end("agent", "--driver", driver)?, end("proxy", "--endpoint", socket)?])
}

fn nats(setup: Setup<'_>) -> Result<(Process, u16), E2eError> {
    let port = port::free();
    let settings = written(setup, "nats.conf", &format!("listen: 127.0.0.1:{port}\nmax_payload: 17MB\n"))?;
    server("nats-server", &settings, port, setup)
}

fn mosquitto(setup: Setup<'_>) -> Result<(Process, u16), E2eError> {
    let port = port::free();
    let settings = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nmax_packet_size 17825792\nmax_queued_messages 0\n"
    );
    server("mosquitto", &written(setup, "mosquitto.conf", &settings)?, port, setup)
}

fn server(
    program: &'static str,
    settings: &Path,
    port: u16,
    setup: Setup<'_>,
) -> Result<(Process, u16), E2eError> {
    let mut server = Process::spawn(setup.logs, program, Command::new(program).arg("-c").arg(settings))?;
    server.ready("its port", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    Ok((server, port))
}

fn written(setup: Setup<'_>, name: &str, text: &str) -> Result<PathBuf, E2eError> {
    let path = setup.scratch.join(name);
    std::fs::write(&path, text).map_err(|cause| E2eError::File { path: path.clone(), cause })?;
    Ok(path)
}
