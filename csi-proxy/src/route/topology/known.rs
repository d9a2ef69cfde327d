//! What is known of one node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message;
use tokio::time::Instant;

use super::quotes::Quotes;
use crate::call::NodeId;
use crate::operation::Digest;
use crate::route::Presence;

/// How long a capacity that a driver reported counts in an election.
pub(super) const FRESH: Duration = Duration::from_secs(60);

/// Most classes whose capacity is remembered of a node.
const MAX_ROOMS: usize = 64;

/// When a node is asked again what it is, if nobody tells when it comes and goes.
pub(super) const ROUND: Duration = Duration::from_secs(30);

/// The same where somebody does: a driver may have been replaced under a node that has stayed.
pub(super) const LONG_ROUND: Duration = Duration::from_secs(300);

/// When a node that has come, and did not say what it is, is asked again for the first time: its driver may be starting.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// When what a node has is listed again, if it was away meanwhile.
const RELIST: Duration = Duration::from_secs(600);

/// What a node's driver says of itself.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Facts {
    /// Its own name for the node; empty if it has no node service.
    #[prost(string, tag = "1")]
    pub(super) node_id: String,
    /// Where the node is.
    #[prost(message, required, tag = "2")]
    pub(super) topology: csi::Topology,
    /// The `GetPluginInfoResponse`.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) info: Bytes,
    /// The `GetPluginCapabilitiesResponse`.
    #[prost(message, required, tag = "4")]
    pub(super) plugin: csi::GetPluginCapabilitiesResponse,
    /// The `ControllerGetCapabilitiesResponse`; `None` if the service is not offered.
    #[prost(message, optional, tag = "5")]
    pub(super) controller: Option<csi::ControllerGetCapabilitiesResponse>,
    /// The `GroupControllerGetCapabilitiesResponse`; `None` if the service is not offered.
    #[prost(message, optional, tag = "6")]
    pub(super) group: Option<csi::GroupControllerGetCapabilitiesResponse>,
    /// The `NodeGetCapabilitiesResponse`; `None` if the service is not offered.
    #[prost(message, optional, tag = "9")]
    pub(super) node_service: Option<csi::NodeGetCapabilitiesResponse>,
    /// Whether all volumes that were there at some time are in the table.
    #[prost(bool, tag = "7")]
    pub(super) volumes_listed: bool,
    /// The same for snapshots.
    #[prost(bool, tag = "8")]
    pub(super) snapshots_listed: bool,
}

impl Facts {
    /// The same, and nothing is whole in the table.
    pub(super) fn unlisted(&self) -> Self {
        Self { volumes_listed: false, snapshots_listed: false, ..self.clone() }
    }

    /// A description, unless it speaks of nothing that is whole in the table.
    pub(super) fn not_whole(description: &Bytes) -> Option<Bytes> {
        let facts = Self::decode(description.clone()).ok()?;
        (facts.volumes_listed || facts.snapshots_listed).then(|| facts.unlisted().encode_to_vec().into())
    }
}

/// What is known of one node.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) facts: Option<Arc<Facts>>,
    pub(super) presence: Presence,
    /// The route was given it.
    pub(super) named: bool,
    /// It is there, as far as was told.
    pub(super) seen: bool,
    rooms: VecDeque<Room>,
    pub(super) quotes: Quotes,
    /// When it is to be asked what it is.
    pub(super) due: Instant,
    /// It is being asked.
    pub(super) visited: bool,
    /// How often in a row it did not say what it is.
    pub(super) misses: u32,
    pub(super) listed: Option<Instant>,
}

impl Known {
    pub(super) fn new(facts: Option<Facts>, named: bool) -> Self {
        Self {
            facts: facts.map(Arc::new),
            presence: Presence::Unknown,
            named,
            seen: false,
            rooms: VecDeque::new(),
            quotes: Quotes::default(),
            due: Instant::now(),
            visited: false,
            misses: 0,
            listed: None,
        }
    }

    /// Whether it has the driver, had it, or may have it.
    pub(super) fn is_of_driver(&self) -> bool {
        self.named || self.facts.is_some() || self.presence == Presence::Unknown
    }

    /// When something is to be asked of it.
    pub(super) fn next(&self) -> Instant {
        match self.quotes.due().filter(|_| self.presence == Presence::Online) {
            Some(due) => due.min(self.due),
            None => self.due,
        }
    }

    pub(super) fn rest(&mut self, told: bool, now: Instant) {
        self.due = now
            + match self.presence {
                _ if !told => ROUND,
                Presence::Online => LONG_ROUND,
                // It is asked as soon as it is told to be there.
                _ if !self.seen => LONG_ROUND,
                presence => {
                    // Most likely it never has the driver, or else has trouble with it.
                    let longest = if presence == Presence::WithoutDriver { LONG_ROUND } else { ROUND };
                    longest.min(FIRST_PAUSE * 2_u32.pow(self.misses.saturating_sub(1).min(8)))
                }
            };
    }

    /// Takes in how it can be reached, and says whether that is new.
    pub(super) fn set(&mut self, node: &NodeId, presence: Presence) -> bool {
        let news = self.presence != presence;
        if news {
            self.presence = presence;
            tracing::info!(%node, ?presence, "a node of the route");
        }
        news
    }

    /// Whether what it has is to be listed.
    pub(super) fn is_to_be_listed(&self, now: Instant) -> bool {
        self.listed.is_none_or(|listed| now.saturating_duration_since(listed) >= RELIST)
    }

    /// Remembers how large a volume of a class may be.
    pub(super) fn found_room(&mut self, class: Digest, bytes: u64, now: Instant) {
        self.rooms.retain(|room| room.class != class);
        self.rooms.push_back(Room { class, bytes, since: now });
        if self.rooms.len() > MAX_ROOMS {
            self.rooms.pop_front();
        }
    }

    /// How large a volume of a class may be, if it has said so a short time ago.
    pub(super) fn room(&self, class: &Digest, now: Instant) -> Option<u64> {
        let fresh = |room: &&Room| room.class == *class && now.saturating_duration_since(room.since) < FRESH;
        self.rooms.iter().find(fresh).map(|room| room.bytes)
    }

    /// Forgets how much room there is.
    pub(super) fn forget_room(&mut self) {
        self.rooms.clear();
        self.quotes = Quotes::default();
    }
}

/// How large a volume of a class may be.
#[derive(Debug)]
struct Room {
    class: Digest,
    bytes: u64,
    since: Instant,
}
