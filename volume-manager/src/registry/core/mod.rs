//! The logic of the registry: what stands in the directory and how calls ended go in, what to do comes out.
//!
//! No clock, no socket, no task. The time is an argument: how long the registry has been running. Whoever drives it
//! hands in a [`Event::Listed`] every now and then (calls that are due again start only then) and one
//! [`Event::Inspected`] or [`Event::Notified`] for each call that an [`Action`] asked for, in any order.
//!
//! ```
//! use std::time::Duration;
//! use volume_manager::registry::core::{Action, Event, Generation, Registry, SocketFile, SocketName};
//!
//! let mut registry = Registry::new("/plugins_registry");
//! let name = SocketName::new("csi-hostpath-reg.sock").ok_or("the name begins with a dot")?;
//! let listing = vec![SocketFile { name, generation: Generation { inode: 7, modified_nanos: 0 } }];
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

use super::plugin::{DriverEndpoint, Plugin, Refusal};
use crate::backoff::doubled;

mod socket;

pub use socket::{Generation, SocketFile, SocketName};

/// The wait before a call is tried again, after the first failure.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The longest wait. A registrar that comes right again is noticed within it.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// One call to a registrar. No two calls have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(u64);

/// What happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The directory was read to its end, and these sockets are in it.
    Listed(Vec<SocketFile>),
    /// The call that an [`Action::Inspect`] asked for ended.
    Inspected {
        /// The call.
        attempt: Attempt,
        /// What the registrar answered; `None` if it did not, in time or at all.
        info: Option<PluginInfo>,
    },
    /// The call that an [`Action::Notify`] asked for ended.
    Notified {
        /// The call.
        attempt: Attempt,
        /// Whether the registrar took notice.
        delivered: bool,
    },
}

/// What to do, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Dial the socket and call GetInfo.
    Inspect {
        /// The call's name, for its [`Event::Inspected`].
        attempt: Attempt,
        /// The socket to dial.
        socket: SocketName,
    },
    /// Dial the socket and call NotifyRegistrationStatus.
    Notify {
        /// The call's name, for its [`Event::Notified`].
        attempt: Attempt,
        /// The socket to dial.
        socket: SocketName,
        /// What to tell: registered, or why not.
        verdict: Result<(), Refusal>,
    },
    /// Log that the plugin is none of ours. It is told nothing: whoever else watches the directory may want it.
    Ignored {
        /// Its socket.
        socket: SocketName,
        /// The type that it gave, at most 64 characters of it.
        found: String,
    },
    /// Drop the call: nobody waits for its end.
    Abandon(Attempt),
    /// Tell the registry's user.
    Tell(DriverEvent),
}

/// A driver came or went.
///
/// For one name the two kinds alternate, beginning with `Registered`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverEvent {
    /// A registrar announced a driver and nothing speaks against it.
    Registered {
        /// The driver's name; no other registered driver has it.
        name: DriverName,
        /// Where the driver serves CSI. Nobody has dialled it yet.
        endpoint: DriverEndpoint,
    },
    /// A driver that was registered is so no more.
    Deregistered {
        /// The driver's name; it is free again.
        name: DriverName,
        /// What ended the registration.
        reason: DeregistrationReason,
    },
}

/// What ended a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeregistrationReason {
    /// The registration socket is gone from the directory.
    SocketRemoved,
    /// Another socket stands at the same path: the registrar began anew. If it answers, `Registered` follows.
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

/// The registration sockets of one directory, and the drivers that came through them.
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
    generation: Generation,
    /// How many calls have failed in a row.
    failures: u32,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// GetInfo is called when the time has come.
    Waiting { until: Duration },
    /// GetInfo is being called.
    Inspecting(Attempt),
    /// The registrar is being told why not.
    Refusing(Attempt),
    /// The plugin is of another type, until its socket goes.
    Foreign,
    /// The driver is registered, whether its registrar knows or not.
    Registered { driver: DriverName, notice: Notice },
}

/// How far the registrar of a registered driver has been told so.
#[derive(Debug)]
enum Notice {
    Waiting { until: Duration },
    Sending(Attempt),
    Delivered,
}

impl Registry {
    /// The most sockets that are looked after; each stands for at most one driver.
    pub const MAX_SOCKETS: usize = 64;

    /// A registry that has seen nothing yet of the sockets in `directory`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), sockets: BTreeMap::new(), untracked: 0, attempts: 0 }
    }

    /// How many sockets of the last listing are not looked after, because [`Self::MAX_SOCKETS`] others are.
    ///
    /// They get their turn when others go.
    #[must_use]
    pub fn untracked(&self) -> usize {
        self.untracked
    }

    /// The one transition: takes what happened and answers what to do.
    ///
    /// `now` is the time since the registry began; it may not go back. The end of a call that was abandoned, or that
    /// was never asked for, changes nothing.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Listed(files) => self.listed(files, now),
            Event::Inspected { attempt, info } => self.inspected(attempt, info, now),
            Event::Notified { attempt, delivered } => self.notified(attempt, delivered, now),
        }
    }

    fn listed(&mut self, files: Vec<SocketFile>, now: Duration) -> Vec<Action> {
        let files: BTreeMap<SocketName, Generation> =
            files.into_iter().map(|file| (file.name, file.generation)).collect();
        let mut actions = self.forget_ended(&files);
        self.untracked = 0;
        for (name, generation) in files {
            if self.sockets.contains_key(&name) {
                continue;
            }
            if self.sockets.len() < Self::MAX_SOCKETS {
                let phase = Phase::Waiting { until: now };
                self.sockets.insert(name, Socket { generation, failures: 0, phase });
            } else {
                self.untracked += 1;
            }
        }
        self.start_due(now, &mut actions);
        actions
    }

    /// Drops the sockets that are gone or replaced, with everything that hangs on them.
    fn forget_ended(&mut self, files: &BTreeMap<SocketName, Generation>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.sockets.retain(|name, socket| {
            let reason = match files.get(name) {
                Some(generation) if *generation == socket.generation => return true,
                Some(_) => DeregistrationReason::SocketReplaced,
                None => DeregistrationReason::SocketRemoved,
            };
            actions.extend(socket.phase.attempt().map(Action::Abandon));
            if let Phase::Registered { driver, .. } = &socket.phase {
                actions.push(Action::Tell(DriverEvent::Deregistered { name: driver.clone(), reason }));
            }
            false
        });
        actions
    }

    /// Starts every call whose time has come.
    fn start_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for (name, socket) in &mut self.sockets {
            match &mut socket.phase {
                Phase::Waiting { until } if *until <= now => {
                    let attempt = next(&mut self.attempts);
                    socket.phase = Phase::Inspecting(attempt);
                    actions.push(Action::Inspect { attempt, socket: name.clone() });
                }
                Phase::Registered { notice: notice @ Notice::Waiting { .. }, .. } => {
                    if matches!(notice, Notice::Waiting { until } if *until <= now) {
                        let attempt = next(&mut self.attempts);
                        *notice = Notice::Sending(attempt);
                        actions.push(Action::Notify { attempt, socket: name.clone(), verdict: Ok(()) });
                    }
                }
                _ => {}
            }
        }
    }

    fn inspected(&mut self, attempt: Attempt, info: Option<PluginInfo>, now: Duration) -> Vec<Action> {
        let Some(name) = self.waiting_for(attempt) else { return Vec::new() };
        let verdict = info.map(|info| self.judge(info, &name));
        let Some(socket) = self.sockets.get_mut(&name) else { return Vec::new() };
        let Some(verdict) = verdict else {
            socket.phase = Phase::Waiting { until: now + failed(&mut socket.failures) };
            return Vec::new();
        };
        if let Err(Refusal::Type { found }) = verdict {
            socket.phase = Phase::Foreign;
            return vec![Action::Ignored { socket: name, found }];
        }
        let attempt = next(&mut self.attempts);
        match verdict {
            Ok(Plugin { name: driver, endpoint }) => {
                let notice = Notice::Sending(attempt);
                socket.phase = Phase::Registered { driver: driver.clone(), notice };
                socket.failures = 0;
                // The user knows before the registrar does, as with kubelet: what is announced is already served.
                vec![
                    Action::Tell(DriverEvent::Registered { name: driver, endpoint }),
                    Action::Notify { attempt, socket: name, verdict: Ok(()) },
                ]
            }
            Err(refusal) => {
                socket.phase = Phase::Refusing(attempt);
                vec![Action::Notify { attempt, socket: name, verdict: Err(refusal) }]
            }
        }
    }

    fn notified(&mut self, attempt: Attempt, delivered: bool, now: Duration) -> Vec<Action> {
        let Some(name) = self.waiting_for(attempt) else { return Vec::new() };
        let Some(Socket { failures, phase, .. }) = self.sockets.get_mut(&name) else { return Vec::new() };
        match phase {
            Phase::Refusing(_) => *phase = Phase::Waiting { until: now + failed(failures) },
            Phase::Registered { notice, .. } if delivered => *notice = Notice::Delivered,
            Phase::Registered { notice, .. } => *notice = Notice::Waiting { until: now + failed(failures) },
            // An answer to a call of the other kind: the driver of this core mixed up its events.
            Phase::Waiting { .. } | Phase::Inspecting(_) | Phase::Foreign => {}
        }
        Vec::new()
    }

    /// Whether a driver may be registered through a socket.
    fn judge(&self, info: PluginInfo, socket: &SocketName) -> Result<Plugin, Refusal> {
        let plugin = Plugin::check(info, &self.directory.join(socket))?;
        let holder = self.sockets.iter().find(|(_, other)| match &other.phase {
            Phase::Registered { driver, .. } => *driver == plugin.name,
            _ => false,
        });
        match holder {
            Some((holder, _)) => Err(Refusal::DuplicateName { name: plugin.name, holder: holder.clone() }),
            None => Ok(plugin),
        }
    }

    /// The socket that waits for the end of a call.
    fn waiting_for(&self, attempt: Attempt) -> Option<SocketName> {
        let found = self.sockets.iter().find(|(_, socket)| socket.phase.attempt() == Some(attempt));
        found.map(|(name, _)| name.clone())
    }
}

impl Phase {
    /// The call that is under way.
    fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Inspecting(attempt)
            | Self::Refusing(attempt)
            | Self::Registered { notice: Notice::Sending(attempt), .. } => Some(*attempt),
            Self::Waiting { .. } | Self::Foreign | Self::Registered { .. } => None,
        }
    }
}

/// Notes a failure and answers how long to wait. No jitter: there is one caller, and its peers are local.
fn failed(failures: &mut u32) -> Duration {
    *failures = failures.saturating_add(1);
    doubled(FIRST_WAIT, LONGEST_WAIT, *failures)
}

/// A name for a new call.
fn next(attempts: &mut u64) -> Attempt {
    *attempts += 1;
    Attempt(*attempts)
}

#[cfg(test)]
mod tests;
