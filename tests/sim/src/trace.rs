//! The readable events of a run, and the fingerprint by which two runs are compared.

use std::fmt::Write;
use std::time::Duration;

/// The lines of a run, if requested.
#[derive(Debug)]
pub(crate) struct Trace {
    on: bool,
    text: String,
    fingerprint: u64,
}

impl Trace {
    pub(crate) const fn new(on: bool) -> Self {
        Self { on, text: String::new(), fingerprint: 0xcbf2_9ce4_8422_2325 }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.on
    }

    /// Adds a line, which is formatted only if tracing is on.
    pub(crate) fn note(
        &mut self,
        at: Duration,
        source: impl FnOnce() -> String,
        what: impl FnOnce() -> String,
    ) {
        if self.on {
            // Writing to a string does not fail.
            let _ = writeln!(self.text, "{:>12.6}  {:<12} {}", at.as_secs_f64(), source(), what());
        }
    }

    /// Adds a number to the fingerprint (FNV-1a).
    pub(crate) fn mark(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.fingerprint = (self.fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}
