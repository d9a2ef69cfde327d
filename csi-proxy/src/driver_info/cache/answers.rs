//! The answers to callers: those of one node, or what most nodes have, and their status.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message;

use super::{Cache, Entry, Mode};
use crate::call::NodeId;
use crate::driver_info::info::{self, Fact};
use crate::driver_info::question::Question;

/// The maximum number of versions in the answer of all nodes together, and of the bytes of each one. Others are omitted.
const MAX_VERSIONS: usize = 8;
const MAX_VERSION: usize = 128;

/// The status of the start-up answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartupStatus {
    /// Whether the last round reached the driver; `None` before the first round.
    pub reached: Option<bool>,
    /// Whether `Probe` reports ready.
    pub ready: bool,
    /// Whether all capabilities are known.
    pub complete: bool,
    /// The time since the driver last confirmed the answers: at most an hour while the driver is reachable, and growing
    /// while it is not. The clock of this host measures it, across restarts. `None` if nothing is known.
    pub age: Option<Duration>,
}

impl Cache {
    /// The answer for a node or, with `None`, for all nodes together. `None` if the caller has to wait.
    pub(crate) fn answer(&self, of: Option<&NodeId>, question: Question) -> Option<Fact> {
        if question == Question::Probe {
            let ready = Some(self.is_ready(of));
            return Some(Ok(csi::ProbeResponse { ready }.encode_to_vec().into()));
        }
        let known = match of {
            Some(node) => self.entry(node).and_then(|entry| entry.info().get(question)).cloned(),
            None => self.of_most(question),
        };
        let unknown = || csi::GetPluginInfoResponse {
            name: self.driver.to_string(),
            vendor_version: "unknown".to_owned(),
            ..Default::default()
        };
        known.or_else(|| (question == Question::PluginInfo).then(|| Ok(unknown().encode_to_vec().into())))
    }

    /// Whether the nodes with complete info are more than the connected ones whose first round has not ended, so that
    /// the first node to answer does not decide about the [answers](Self::answer) alone.
    pub(crate) fn is_representative(&self) -> bool {
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.entries.values().partition(|entry| entry.info().is_complete(true));
        known.len() > unknown.iter().filter(|entry| entry.seen && entry.reached.is_none()).count()
    }

    /// What most nodes with complete info have.
    fn of_most(&self, question: Question) -> Option<Fact> {
        let takes_part = |entry: &&Entry| entry.info().is_complete(true) && entry.conflict().is_none();
        let known: Vec<_> = self.entries.values().filter(takes_part).collect();
        let first = known.first()?;
        let mut common = match question {
            Question::PluginInfo => {
                // The answer of the first node with all versions, so that a changed version is visible.
                let of = |entry: &Entry| entry.info().decoded::<csi::GetPluginInfoResponse>(question);
                let versions = known.iter().filter_map(|entry| Some(of(entry)?.vendor_version));
                let versions: BTreeSet<_> = versions.collect();
                let versions = versions.into_iter().filter(|version| version.len() <= MAX_VERSION);
                let vendor_version = versions.take(MAX_VERSIONS).collect::<Vec<_>>().join(", ");
                let info = csi::GetPluginInfoResponse { vendor_version, ..of(first)? };
                Some(Bytes::from(info.encode_to_vec()))
            }
            // These answers differ by node.
            Question::NodeInfo | Question::Probe => None,
            _ => info::of_most(known.iter().map(|entry| entry.info().get(question))),
        };
        // If most nodes have a topology, the volumes of the driver are bound to topologies, even if the driver does
        // not report it.
        let has_place =
            |entry: &&Entry| entry.topology().is_some_and(|topology| !topology.segments.is_empty());
        if let (Question::PluginCapabilities, Some(plugin)) = (question, &mut common)
            && 2 * known.iter().copied().filter(has_place).count() > known.len()
        {
            let mut response = csi::GetPluginCapabilitiesResponse::decode(plugin.clone()).ok()?;
            if !response.has_service(Service::VolumeAccessibilityConstraints) {
                response
                    .capabilities
                    .push(csi::PluginCapability::service(Service::VolumeAccessibilityConstraints));
            }
            *plugin = response.encode_to_vec().into();
        }
        Some(common.ok_or_else(|| "the service is missing on most nodes".to_owned()))
    }

    fn is_ready(&self, of: Option<&NodeId>) -> bool {
        match of {
            Some(node) => self.entry(node).is_some_and(|entry| entry.ready),
            None => self.entries.values().any(|entry| entry.ready && entry.conflict().is_none()),
        }
    }

    /// The status of the [answers](Self::answer).
    pub(crate) fn status(&self, of: Option<&NodeId>, time: SystemTime) -> StartupStatus {
        let mut asked = info::stored_questions(self.mode == Mode::Each { node_info: true });
        let complete = asked.all(|question| self.answer(of, question).is_some());
        let (as_of, reached) = match of {
            Some(node) => {
                self.entry(node).map_or((None, None), |entry| (entry.as_of, entry.reported.reached))
            }
            None => (self.entries.values().filter_map(|entry| entry.as_of).max(), self.reported.reached),
        };
        let age = as_of.map(|as_of| time.duration_since(as_of).unwrap_or_default());
        StartupStatus { reached, ready: self.is_ready(of), complete, age }
    }

    /// Whether to log that answers are stale: true once per outage.
    pub(crate) fn report_stale(&mut self, of: Option<&NodeId>) -> bool {
        let reported = self.reported(of);
        reported.reached != Some(true) && !std::mem::replace(&mut reported.stale, true)
    }
}
