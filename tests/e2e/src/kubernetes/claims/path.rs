//! The processes between a provisioner and the driver.

use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::counting::{Counting, Served};
use edge_csi_tests::port;
use edge_csi_tests::process::Process;

use super::WORK;
use crate::error::E2eError;
use crate::kubernetes::edge::hub_options;
use crate::kubernetes::part::{Part, Ready};
use crate::setup::Setup;

/// The name of the agent.
const NODE: &str = "claims-1";

/// How the provisioner reaches the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// On the driver's own socket.
    Direct,
    /// Through edge-csi-driver, edge-hub and edge-agent, to one node.
    Relayed,
    /// As `Relayed`, with a route by topology and thus a placement on disk for each volume.
    Placed,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::Relayed, Self::Placed];

    /// Returns the name of the driver, which selects the claims.
    pub(super) const fn driver(self) -> &'static str {
        match self {
            Self::Direct => "direct.csi.edge",
            Self::Relayed => "relayed.csi.edge",
            Self::Placed => "placed.csi.edge",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Relayed => "relayed",
            Self::Placed => "placed",
        })
    }
}

/// A driver, and the relay in front of it unless it is direct. The relay is killed when dropped.
pub(super) struct Path {
    pub(super) way: Way,
    pub(super) driver: Counting,
    /// The socket for the provisioner.
    pub(super) socket: PathBuf,
    relay: Vec<Part>,
    _served: Served,
}

impl Path {
    /// Starts the processes, and waits until they are connected. `programs` replaces the folder of the relay's binaries.
    pub(super) fn start(
        setup: &Setup<'_>,
        way: Way,
        programs: Option<&FilePath>,
        round: u64,
    ) -> Result<Self, E2eError> {
        let folder = setup.folder(&format!("claims/{way}-{round}"))?;
        let driver = Counting::working(WORK).named(way.driver());
        let socket = folder.join("driver.sock");
        let _served = driver.serve(&socket);
        let mut path = Self { way, driver, socket, relay: Vec::new(), _served };
        if way != Way::Direct {
            path.relay(setup, &folder, programs)?;
        }
        Ok(path)
    }

    fn relay(
        &mut self,
        setup: &Setup<'_>,
        folder: &FilePath,
        programs: Option<&FilePath>,
    ) -> Result<(), E2eError> {
        let (hub, name) = (port::free(), self.way.driver());
        let uplink = format!("wss://localhost:{hub}");
        let socket = folder.join("csi.sock");
        let hub_options = hub_options(setup, &folder.join("hub.sock"), hub);
        let agent = Arguments::new()
            .serving(name, &self.socket)
            .pair("--nodeid", NODE)
            .pair("--hub", &uplink)
            .pair("--state-dir", folder.join("agent"))
            .dialer(&setup.certificates.issue(&[NODE]));
        let proxy = Arguments::new()
            .pair("--drivername", name)
            .pair("--endpoint", unix(&socket))
            .pair("--hub", &uplink)
            .pair("--nodeid", NODE)
            .pair("--state-dir", folder.join("proxy"))
            .dialer(&setup.certificates.proxy);
        let proxy = match self.way {
            Way::Placed => proxy.pair("--node", NODE).pair("--route", "topology"),
            Way::Direct | Way::Relayed => proxy,
        };
        let built = setup.components;
        for (program, options) in [(&built.hub, hub_options), (&built.agent, agent), (&built.proxy, proxy)] {
            self.relay.push(start(setup, program, programs, options, &self.way.to_string())?);
        }
        self.socket = socket;
        Ok(())
    }

    /// Returns the processor time that the relay has used.
    pub(super) fn processor_time(&self) -> Duration {
        self.relay.iter().filter_map(Part::process).map(Process::processor_time).sum()
    }

    /// Returns the peaks of the relay's memory together, in KiB.
    pub(super) fn peak_kib(&self) -> u64 {
        self.relay.iter().filter_map(|part| part.process()?.peak_kib()).sum()
    }

    /// Stops the relay gracefully.
    pub(super) fn stop(self) -> Result<(), E2eError> {
        self.relay.into_iter().rev().try_for_each(Part::stop)
    }
}

/// Starts one of the binaries as an installation does, without debug logs, and waits until it is ready.
fn start(
    setup: &Setup<'_>,
    program: &FilePath,
    programs: Option<&FilePath>,
    options: Arguments,
    way: &str,
) -> Result<Part, E2eError> {
    let file = program.file_name().unwrap_or_default();
    let program = programs.map_or_else(|| program.to_owned(), |folder| folder.join(file));
    let port = port::free();
    let options = options.pair("--http-endpoint", format!("127.0.0.1:{port}"));
    let log = format!("claims-{way}-{}", file.to_string_lossy());
    Part::start(setup, log, &program, options, Ready::Page(port))
}
