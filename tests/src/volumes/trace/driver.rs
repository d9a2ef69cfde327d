//! The driver that a trace is put to, as a process that may be killed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use crate::csi;
use crate::process::Process;

/// What a driver does otherwise than hostpath-driver, and may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Deviation {
    /// Nothing is mounted at the staging path.
    StagesWithoutMount,
    /// Nothing is mounted anywhere: the witness in front of the driver does it.
    MountsNothing,
    /// It cannot be started again, so neither it nor the machine is.
    ForgetsAtRestart,
    /// It refuses to publish read-only what it has published so.
    RefusesReadOnlyTwice,
    /// It wants to be asked to unpublish once for each boot over which a volume was published.
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

    /// Why it may be.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::StagesWithoutMount => {
                "nothing is mounted at the staging path: the spec leaves to a driver what it does there"
            }
            Self::MountsNothing => {
                "it is a mock and mounts nothing: the witness in front of it mounts for it, and what the mock does is to \
                 hold the calls to their order"
            }
            Self::ForgetsAtRestart => {
                "it has its volumes in memory: a start or a boot would lose them, and is left out"
            }
            Self::RefusesReadOnlyTwice => {
                "it answers ALREADY_EXISTS to a read-only NodePublishVolume that is repeated, as it must if no pod \
                 knows how the first one ended: the volume is unpublished before it is published again"
            }
            Self::CountsBoots => {
                "it keeps a list of targets over a boot, and a NodePublishVolume after it adds a target that is in it \
                 once more; NodeUnpublishVolume takes one off and says OK, and then NodeUnstageVolume fails for ever, \
                 since something is still in the list. Only NodeUnstageVolume may follow it, so the witness in front \
                 repeats NodeUnpublishVolume for each boot"
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

/// A driver, and how it is started.
#[allow(clippy::exhaustive_structs, reason = "these are the facts of a driver under a trace")]
#[derive(Debug, Clone)]
pub struct TracedDriver {
    /// The name that it answers.
    pub name: String,
    /// Program and arguments; `{socket}` and `{state}` in them are replaced by paths.
    pub command: Vec<String>,
    /// What it does otherwise.
    pub deviations: Vec<Deviation>,
}

impl TracedDriver {
    pub(super) fn has(&self, deviation: Deviation) -> bool {
        self.deviations.contains(&deviation)
    }

    /// Starts it, and waits until it serves.
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
