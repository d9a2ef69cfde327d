//! Collects the warnings of one message.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Breach, MAP_MAX_BYTES, MAX_WARNINGS, Validate, Warning};
use crate::name::DriverName;

/// The warnings of one message and its nested messages.
#[derive(Debug, Default)]
pub struct Report {
    /// The path of the message that is being checked, with a trailing dot; empty at the top level.
    path: String,
    /// The first prefix of a topology key in the message.
    pub(super) prefix: Option<String>,
    warnings: Vec<Warning>,
}

impl Report {
    pub(super) fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    pub(super) fn string(&mut self, field: &str, value: &str, bound: usize) {
        self.size(field, value.len(), bound);
    }

    pub(super) fn strings(&mut self, field: &str, values: &[String], bound: usize) {
        for (at, value) in values.iter().enumerate() {
            if value.len() > bound {
                self.size(&format!("{field}[{at}]"), value.len(), bound);
            }
        }
    }

    pub(super) fn total(&mut self, field: &str, values: &[String], bound: usize) {
        self.size(field, values.iter().map(String::len).sum(), bound);
    }

    pub(super) fn map(&mut self, field: &str, values: &BTreeMap<String, String>) {
        let found = values.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.size(field, found, MAP_MAX_BYTES);
    }

    pub(super) fn driver_name(&mut self, field: &str, name: &str) {
        if let Err(cause) = DriverName::check(name) {
            self.warn(field, Breach::DriverName(cause));
        }
    }

    pub(super) fn message<M: Validate>(&mut self, field: &str, message: Option<&M>) {
        if let Some(message) = message {
            let _ = write!(self.path, "{field}.");
            message.check(self);
            self.path.truncate(self.path.len() - field.len() - 1);
        }
    }

    pub(super) fn messages<M: Validate>(&mut self, field: &str, messages: &[M]) {
        for (at, message) in messages.iter().enumerate() {
            if self.warnings.len() >= MAX_WARNINGS {
                return;
            }
            self.message(&format!("{field}[{at}]"), Some(message));
        }
    }

    pub(super) fn warn(&mut self, field: &str, breach: Breach) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(Warning { field: format!("{}{field}", self.path), breach });
        }
    }

    fn size(&mut self, field: &str, found: usize, bound: usize) {
        if found > bound {
            self.warn(field, Breach::Size { found, bound });
        }
    }
}
