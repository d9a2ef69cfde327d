//! The schedule of concurrent tests. Most tests spend most of their time waiting, since their links are slow or are cut, and no
//! two share a port, a socket or a folder. All start immediately, and those of one kind run one at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::link_condition::LinkCondition;
use super::scenario::Scenario;
use super::test_run::{Route, TestRun};

/// The resource that tests of one kind share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The test uses the CPU: two such tests at the same time would take as long as one after the other.
    Busy,
    /// The test waits several seconds for cut links.
    Cuts,
    /// The test runs the sidecars' code.
    Sidecars,
    /// The test waits for minutes, and runs beside all others.
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
        // A test that panicked has finished its turn.
        Some(turn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl From<TestRun> for Kind {
    fn from(test_run: TestRun) -> Self {
        match test_run.route {
            Route::Relayed(_, LinkCondition::Far) => Self::Slow,
            Route::Relayed(_, LinkCondition::Cuts | LinkCondition::FastCuts) => Self::Cuts,
            Route::Direct | Route::Shim | Route::Embedded(_) | Route::Relayed(_, LinkCondition::Clean) => {
                Self::Busy
            }
        }
    }
}

impl From<Scenario> for Kind {
    fn from(scenario: Scenario) -> Self {
        match scenario {
            Scenario::Offline => Self::Slow,
            Scenario::Codes | Scenario::Faults => Self::Sidecars,
            Scenario::LyingDriver | Scenario::ExamplePlugin | Scenario::Trace => Self::Busy,
        }
    }
}
