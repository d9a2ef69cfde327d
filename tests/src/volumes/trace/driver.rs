//! The driver under a trace, as a process that may be killed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use crate::csi;
use crate::process::Process;

/// A permitted difference between a driver and hostpath-driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Deviation {
    /// The driver mounts nothing at the staging path.
    StagesWithoutMount,
    /// The driver mounts nothing at all; the interceptor mounts instead.
    MountsNothing,
    /// The driver keeps its state in memory, so the trace restarts neither the driver nor the machine.
    ForgetsAtRestart,
    /// The driver rejects a repeated read-only NodePublishVolume.
    RefusesReadOnlyTwice,
    /// The driver needs one NodeUnpublishVolume for each boot during which a volume was published.
    CountsBoots,
}

impl Deviation {
    const ALL: [Self; 5] = [
        Self::StagesWithoutMount,
        Self::MountsNothing,
        Self::ForgetsAtRestart,
        Self::RefusesReadOnlyTwice,
        Self::CountsBoots,
    ];

    /// Returns why the deviation is permitted.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::StagesWithoutMount => {
                "the driver mounts nothing at the staging path: the spec does not require a mount there"
            }
            Self::MountsNothing => {
                "the driver is a mock and mounts nothing: the interceptor mounts instead, and the mock checks the order \
                 of the calls"
            }
            Self::ForgetsAtRestart => {
                "the driver has its volumes in memory: the trace leaves out restarts and reboots, which would lose them"
            }
            Self::RefusesReadOnlyTwice => {
                "the driver answers ALREADY_EXISTS to a read-only NodePublishVolume that is repeated after a crash: the \
                 volume is unpublished before it is published again"
            }
            Self::CountsBoots => {
                "the driver keeps a list of targets over a boot. A NodePublishVolume after the boot adds the same target \
                 again. NodeUnpublishVolume removes one entry and returns OK, and each NodeUnstageVolume after it fails, \
                 since the list is not empty. The interceptor repeats NodeUnpublishVolume once for each boot"
            }
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StagesWithoutMount => "stages-without-mount",
            Self::MountsNothing => "mounts-nothing",
            Self::ForgetsAtRestart => "forgets-at-restart",
            Self::RefusesReadOnlyTwice => "refuses-read-only-twice",
            Self::CountsBoots => "counts-boots",
        })
    }
}

impl FromStr for Deviation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(|deviation| deviation.to_string()).join(", ");
        Self::ALL
            .into_iter()
            .find(|deviation| deviation.to_string() == text)
            .ok_or_else(|| format!("unknown deviation {text:?}; expected {}", known()))
    }
}

/// A driver and its command line.
#[allow(clippy::exhaustive_structs, reason = "these are the facts of a driver under a trace")]
#[derive(Debug, Clone)]
pub struct TracedDriver {
    /// The CSI name that the driver reports.
    pub name: String,
    /// Program and arguments; `{socket}` and `{state}` in them are replaced by paths.
    pub command: Vec<String>,
    /// The permitted differences of this driver.
    pub deviations: Vec<Deviation>,
}

impl TracedDriver {
    pub(super) fn has(&self, deviation: Deviation) -> bool {
        self.deviations.contains(&deviation)
    }

    /// Starts the driver, and waits until Probe succeeds.
    pub(super) async fn start(&self, directory: &Path) -> Process {
        let (socket, state) = (socket_of(directory), directory.join("driver-state"));
        fs::create_dir_all(&state).expect("a directory for the driver");
        let fill = |word: &String| {
            word.replace("{socket}", &socket.to_string_lossy()).replace("{state}", &state.to_string_lossy())
        };
        let mut words = self.command.iter().map(fill);
        let program = words.next().expect("the command of a driver has a program");
        let process = Process::respawn(directory, "driver", Command::new(program).args(words));
        let process = process.unwrap_or_else(|error| panic!("{error}"));
        csi::ready(&socket).await;
        process
    }
}

pub(super) fn socket_of(directory: &Path) -> PathBuf {
    directory.join("driver.sock")
}

pub(super) fn log_of(directory: &Path) -> PathBuf {
    directory.join("driver.log")
}
