//! The pure core of the registry: directory listings and results of calls in, actions out.
//!
//! The core has no clock, socket or task. Its time is an argument: how long the registry has been running. The
//! runtime passes an [`Event::Listed`] periodically (due calls start only then), and one [`Event::Inspected`] or
//! [`Event::Notified`] for each call that an [`Action`] requested, in any order.
//!
//! ```
//! use std::time::Duration;
//! use volume_manager::advanced::registry::{Action, Event, Registry, SocketFile, SocketIdentity, SocketName};
//!
//! let mut registry = Registry::new("/plugins_registry");
//! let name = SocketName::new("csi-hostpath-reg.sock").ok_or("the name begins with a dot")?;
//! let listing = vec![SocketFile { name, identity: SocketIdentity { inode: 7, modified_nanos: 0 } }];
//! let actions = registry.step(Event::Listed(listing), Duration::ZERO);
//! assert!(matches!(actions[..], [Action::Inspect { .. }]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proto::pluginregistration::v1::PluginInfo;

use super::plugin::{DriverEndpoint, Plugin, RejectReason};
use crate::backoff::doubled;

mod socket;

pub use socket::{SocketFile, SocketIdentity, SocketName};

/// The backoff after the first failure.
const MIN_BACKOFF: Duration = Duration::from_millis(500);

/// The longest backoff, within which a registrar that works again is noticed.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The unique id of a call to a registrar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(u64);

/// An input of [`Registry::step`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The directory was listed completely, with these sockets.
    Listed(Vec<SocketFile>),
    /// The call of an [`Action::Inspect`] ended.
    Inspected {
        /// The call.
        attempt: Attempt,
        /// The answer; `None` if the call failed.
        info: Option<PluginInfo>,
    },
    /// The call of an [`Action::Notify`] ended.
    Notified {
        /// The call.
        attempt: Attempt,
        /// Whether the call succeeded.
        delivered: bool,
    },
}

/// An output of [`Registry::step`], to be executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Dial the socket and call GetInfo.
    Inspect {
        /// The id for the [`Event::Inspected`] of this call.
        attempt: Attempt,
        /// The socket to dial.
        socket: SocketName,
    },
    /// Dial the socket and call NotifyRegistrationStatus.
    Notify {
        /// The id for the [`Event::Notified`] of this call.
        attempt: Attempt,
        /// The socket to dial.
        socket: SocketName,
        /// The status to report: registered, or the reason of the rejection.
        result: Result<(), RejectReason>,
    },
    /// Log that a plugin of another type is ignored. Its registrar is not notified, since another process may serve it.
    Ignored {
        /// The plugin's socket.
        socket: SocketName,
        /// The plugin's type, cut at 64 characters.
        found: String,
    },
    /// Abort a call; its result is not needed.
    Abandon(Attempt),
    /// Send an event to the user of the registry.
    Emit(DriverEvent),
}

/// A driver was registered or deregistered.
///
/// For each name the two variants alternate, beginning with `Registered`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverEvent {
    /// A driver was accepted.
    Registered {
        /// The driver's name, unique among the registered drivers.
        name: DriverName,
        /// The driver's CSI socket, not dialled yet.
        endpoint: DriverEndpoint,
    },
    /// A registered driver was deregistered.
    Deregistered {
        /// The driver's name, now available to other sockets.
        name: DriverName,
        /// The cause.
        reason: DeregistrationReason,
    },
}

/// Why a driver was deregistered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeregistrationReason {
    /// The registration socket was removed.
    SocketRemoved,
    /// The registration socket was replaced: the registrar was restarted. If it answers, `Registered` follows.
    SocketReplaced,
}

impl fmt::Display for DeregistrationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SocketRemoved => "the registration socket was removed",
            Self::SocketReplaced => "the registration socket was replaced by a new one",
        })
    }
}

/// The registration sockets of a directory, with their drivers.
#[derive(Debug)]
pub struct Registry {
    directory: PathBuf,
    sockets: BTreeMap<SocketName, Socket>,
    untracked: usize,
    attempts: u64,
}

/// One registration socket.
#[derive(Debug)]
struct Socket {
    identity: SocketIdentity,
    /// The number of consecutive failed calls.
    failures: u32,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// GetInfo is due at a time.
    Waiting { until: Duration },
    /// GetInfo is running.
    Inspecting(Attempt),
    /// The rejection is being reported to the registrar.
    Rejecting(Attempt),
    /// The plugin is of another type. Ignored until its socket is removed or replaced.
    Foreign,
    /// The driver is registered; its registrar may not be notified yet.
    Registered { driver: DriverName, notice: Notice },
}

/// The state of the notification of a registered driver's registrar.
#[derive(Debug)]
enum Notice {
    Waiting { until: Duration },
    Sending(Attempt),
    Delivered,
}

impl Registry {
    /// The maximum number of sockets that are tracked, each for at most one driver.
    pub const MAX_SOCKETS: usize = 64;

    /// Creates an empty registry for the sockets in `directory`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), sockets: BTreeMap::new(), untracked: 0, attempts: 0 }
    }

    /// The number of sockets in the last listing that are not tracked, since [`Self::MAX_SOCKETS`] others are.
    ///
    /// An untracked socket becomes tracked when another one was removed.
    #[must_use]
    pub fn untracked(&self) -> usize {
        self.untracked
    }

    /// Processes an event, and returns the actions to execute.
    ///
    /// `now` is the time since the registry was created, and must not decrease. Events of abandoned or unknown calls are
    /// ignored.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Listed(files) => self.listed(files, now),
            Event::Inspected { attempt, info } => self.inspected(attempt, info, now),
            Event::Notified { attempt, delivered } => self.notified(attempt, delivered, now),
        }
    }

    fn listed(&mut self, files: Vec<SocketFile>, now: Duration) -> Vec<Action> {
        let files: BTreeMap<SocketName, SocketIdentity> =
            files.into_iter().map(|file| (file.name, file.identity)).collect();
        let mut actions = self.remove_stale(&files);
        self.untracked = 0;
        for (name, identity) in files {
            if self.sockets.contains_key(&name) {
                continue;
            }
            if self.sockets.len() < Self::MAX_SOCKETS {
                let phase = Phase::Waiting { until: now };
                self.sockets.insert(name, Socket { identity, failures: 0, phase });
            } else {
                self.untracked += 1;
            }
        }
        self.start_due(now, &mut actions);
        actions
    }

    /// Removes the sockets that are absent or replaced, with their drivers and calls.
    fn remove_stale(&mut self, files: &BTreeMap<SocketName, SocketIdentity>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.sockets.retain(|name, socket| {
            let reason = match files.get(name) {
                Some(identity) if *identity == socket.identity => return true,
                Some(_) => DeregistrationReason::SocketReplaced,
                None => DeregistrationReason::SocketRemoved,
            };
            actions.extend(socket.phase.attempt().map(Action::Abandon));
            if let Phase::Registered { driver, .. } = &socket.phase {
                actions.push(Action::Emit(DriverEvent::Deregistered { name: driver.clone(), reason }));
            }
            false
        });
        actions
    }

    /// Starts every due call.
    fn start_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for (name, socket) in &mut self.sockets {
            match &mut socket.phase {
                Phase::Waiting { until } if *until <= now => {
                    let attempt = next_attempt(&mut self.attempts);
                    socket.phase = Phase::Inspecting(attempt);
                    actions.push(Action::Inspect { attempt, socket: name.clone() });
                }
                Phase::Registered { notice: notice @ Notice::Waiting { .. }, .. } => {
                    if matches!(notice, Notice::Waiting { until } if *until <= now) {
                        let attempt = next_attempt(&mut self.attempts);
                        *notice = Notice::Sending(attempt);
                        actions.push(Action::Notify { attempt, socket: name.clone(), result: Ok(()) });
                    }
                }
                _ => {}
            }
        }
    }

    fn inspected(&mut self, attempt: Attempt, info: Option<PluginInfo>, now: Duration) -> Vec<Action> {
        let Some(name) = self.find_socket(attempt) else { return Vec::new() };
        let result = info.map(|info| self.validate(info, &name));
        let Some(socket) = self.sockets.get_mut(&name) else { return Vec::new() };
        let Some(result) = result else {
            socket.phase = Phase::Waiting { until: now + record_failure(&mut socket.failures) };
            return Vec::new();
        };
        if let Err(RejectReason::Type { found }) = result {
            socket.phase = Phase::Foreign;
            return vec![Action::Ignored { socket: name, found }];
        }
        let attempt = next_attempt(&mut self.attempts);
        match result {
            Ok(Plugin { name: driver, endpoint }) => {
                let notice = Notice::Sending(attempt);
                socket.phase = Phase::Registered { driver: driver.clone(), notice };
                socket.failures = 0;
                // The event precedes the notification, as in kubelet: the driver already serves.
                vec![
                    Action::Emit(DriverEvent::Registered { name: driver, endpoint }),
                    Action::Notify { attempt, socket: name, result: Ok(()) },
                ]
            }
            Err(reason) => {
                socket.phase = Phase::Rejecting(attempt);
                vec![Action::Notify { attempt, socket: name, result: Err(reason) }]
            }
        }
    }

    fn notified(&mut self, attempt: Attempt, delivered: bool, now: Duration) -> Vec<Action> {
        let Some(name) = self.find_socket(attempt) else { return Vec::new() };
        let Some(Socket { failures, phase, .. }) = self.sockets.get_mut(&name) else { return Vec::new() };
        match phase {
            Phase::Rejecting(_) => *phase = Phase::Waiting { until: now + record_failure(failures) },
            Phase::Registered { notice, .. } if delivered => *notice = Notice::Delivered,
            Phase::Registered { notice, .. } => {
                *notice = Notice::Waiting { until: now + record_failure(failures) }
            }
            // An event of the wrong kind for this call: a bug of the caller.
            Phase::Waiting { .. } | Phase::Inspecting(_) | Phase::Foreign => {}
        }
        Vec::new()
    }

    /// Validates a driver that registers through a socket.
    fn validate(&self, info: PluginInfo, socket: &SocketName) -> Result<Plugin, RejectReason> {
        let plugin = Plugin::check(info, &self.directory.join(socket))?;
        let holder = self.sockets.iter().find(|(_, other)| match &other.phase {
            Phase::Registered { driver, .. } => *driver == plugin.name,
            _ => false,
        });
        match holder {
            Some((holder, _)) => {
                Err(RejectReason::DuplicateName { name: plugin.name, holder: holder.clone() })
            }
            None => Ok(plugin),
        }
    }

    /// Finds the socket of a running call.
    fn find_socket(&self, attempt: Attempt) -> Option<SocketName> {
        let found = self.sockets.iter().find(|(_, socket)| socket.phase.attempt() == Some(attempt));
        found.map(|(name, _)| name.clone())
    }
}

impl Phase {
    /// The running call, if any.
    fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Inspecting(attempt)
            | Self::Rejecting(attempt)
            | Self::Registered { notice: Notice::Sending(attempt), .. } => Some(*attempt),
            Self::Waiting { .. } | Self::Foreign | Self::Registered { .. } => None,
        }
    }
}

/// Counts a failure, and returns the backoff. It has no jitter, since there is one local caller.
fn record_failure(failures: &mut u32) -> Duration {
    *failures = failures.saturating_add(1);
    doubled(MIN_BACKOFF, MAX_BACKOFF, *failures)
}

/// Allocates the id of a new call.
fn next_attempt(attempts: &mut u64) -> Attempt {
    *attempts += 1;
    Attempt(*attempts)
}

#[cfg(test)]
mod tests;
