//! Which tests run side by side: most of the time of many is spent on waiting, since their links are slow or are cut, and none shares a
//! port, a socket or a folder with another. All of them begin at once, and those of one kind take turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::errand::Errand;
use super::leg::{Leg, Way};
use super::weather::Weather;

/// What a test has in common with those that it does not run beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It uses the host: two of them at once would take as long.
    Busy,
    /// It waits for cut links, some seconds long.
    Cuts,
    /// It works with the code of the sidecars.
    Sidecars,
    /// It waits for minutes, and runs beside all.
    Slow,
}

impl Kind {
    /// Waits until no other test of the kind runs.
    pub(crate) fn turn(self) -> Option<MutexGuard<'static, ()>> {
        static BUSY: Mutex<()> = Mutex::new(());
        static CUTS: Mutex<()> = Mutex::new(());
        static SIDECARS: Mutex<()> = Mutex::new(());
        let turn = match self {
            Self::Busy => &BUSY,
            Self::Cuts => &CUTS,
            Self::Sidecars => &SIDECARS,
            Self::Slow => return None,
        };
        // One that panicked has had its turn.
        Some(turn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl From<Leg> for Kind {
    fn from(leg: Leg) -> Self {
        match leg.way {
            Way::Relayed(_, Weather::Far) => Self::Slow,
            Way::Relayed(_, Weather::Cuts | Weather::FastCuts) => Self::Cuts,
            Way::Direct | Way::Shim | Way::Relayed(_, Weather::Fair) => Self::Busy,
        }
    }
}

impl From<Errand> for Kind {
    fn from(errand: Errand) -> Self {
        match errand {
            Errand::Offline => Self::Slow,
            Errand::Codes | Errand::Faults => Self::Sidecars,
            Errand::LyingDriver | Errand::ExamplePlugin | Errand::Trace => Self::Busy,
        }
    }
}
