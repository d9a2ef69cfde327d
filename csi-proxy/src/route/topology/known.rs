//! What is known of one node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message;
use tokio::time::Instant;

use crate::call::NodeId;
use crate::operation::Digest;
use crate::route::Presence;

/// How long a capacity that a driver reported counts when a node is selected. Provisioners ask once a minute.
pub(super) const FRESH: Duration = Duration::from_secs(90);

/// Most classes whose capacity is remembered of a node.
const MAX_ROOMS: usize = 64;

/// When a node is asked again what it is, if nobody tells when it comes and goes.
pub(super) const ROUND: Duration = Duration::from_secs(30);

/// The same where somebody does: a driver may have been replaced under a node that has stayed.
pub(super) const LONG_ROUND: Duration = Duration::from_secs(300);

/// When a node that has come, and did not say what it is, is asked again for the first time: its driver may be starting.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

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
    /// When it is to be asked what it is.
    pub(super) due: Instant,
    /// It is being asked.
    pub(super) visited: bool,
    /// How often in a row it did not say what it is.
    pub(super) misses: u32,
}

impl Known {
    pub(super) fn new(facts: Option<Facts>, named: bool) -> Self {
        Self {
            facts: facts.map(Arc::new),
            presence: Presence::Unknown,
            named,
            seen: false,
            rooms: VecDeque::new(),
            due: Instant::now(),
            visited: false,
            misses: 0,
        }
    }

    /// Whether it has the driver, had it, or may have it.
    pub(super) fn is_of_driver(&self) -> bool {
        self.named || self.facts.is_some() || self.presence == Presence::Unknown
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
    }
}

/// How large a volume of a class may be.
#[derive(Debug)]
struct Room {
    class: Digest,
    bytes: u64,
    since: Instant,
}
