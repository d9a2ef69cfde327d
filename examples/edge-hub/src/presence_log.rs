//! The log of the peers that connect and disconnect. The first change of a peer is logged at once, and further ones once
//! in 10 s, so that a peer which connects again and again does not fill the log. Of the names below one, which a certificate can
//! make up, few have a line.

use std::collections::BTreeMap;
use std::time::Duration;

use edge_transport::advanced::Presence;
use edge_transport::hub::Hub;
use edge_transport::{PeerId, ServiceName};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

/// The interval in which a peer has one line.
const INTERVAL: Duration = Duration::from_secs(10);

/// The maximum number of names below one that have a line in an interval. Replicas of a proxy are few.
const MAX_BELOW: usize = 64;

/// The maximum length in bytes of the names of services on a line.
const MAX_NAMES: usize = 512;

/// The changes that are not logged yet.
#[derive(Debug, Default)]
struct PresenceLog {
    /// The peers with a line in this interval, and their changes since then.
    recent: BTreeMap<PeerId, Option<Changes>>,
    /// How many of them are below each name.
    below: BTreeMap<Box<str>, usize>,
    /// The changes without a line.
    missed: u64,
}

/// The last change of a peer, and the number of changes.
#[derive(Debug, PartialEq)]
struct Changes(Presence, usize);

impl PresenceLog {
    /// Returns what to log now.
    fn changed(&mut self, presence: Presence) -> Option<Changes> {
        let peer = match &presence {
            Presence::Up(info) => info.peer.clone(),
            Presence::Down { peer, .. } => peer.clone(),
            _ => return None,
        };
        let Some(changes) = self.recent.get_mut(&peer) else {
            if let Some(top) = top(&peer) {
                let below = self.below.entry(top.into()).or_default();
                if *below >= MAX_BELOW {
                    self.missed += 1;
                    return None;
                }
                *below += 1;
            }
            self.recent.insert(peer, None);
            return Some(Changes(presence, 1));
        };
        let count = changes.take().map_or(0, |Changes(_, count)| count);
        *changes = Some(Changes(presence, count + 1));
        None
    }

    /// Ends an interval, and returns what to log.
    fn end_interval(&mut self) -> Vec<Changes> {
        self.recent.retain(|_, changes| changes.is_some());
        self.below.clear();
        for top in self.recent.keys().filter_map(top) {
            *self.below.entry(top.into()).or_default() += 1;
        }
        self.recent.values_mut().filter_map(Option::take).collect()
    }

    fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.missed == 0
    }
}

/// The name above that a certificate for this peer may have; `None` for a name that is below no other.
fn top(peer: &PeerId) -> Option<&str> {
    peer.covered_by().next().filter(|top| *top != peer.as_str())
}

/// Logs the changes until the hub ends.
pub(super) async fn run(hub: Hub) {
    let (mut presence, mut log, mut end) = (hub.presence(), PresenceLog::default(), Instant::now());
    loop {
        if log.is_empty() {
            end = Instant::now() + INTERVAL;
        }
        tokio::select! {
            received = presence.recv() => match received {
                Ok(change) => log.changed(change).iter().for_each(line),
                Err(RecvError::Lagged(missed)) => log.missed += missed,
                Err(RecvError::Closed) => return,
            },
            () = sleep_until(end), if !log.is_empty() => {
                end = Instant::now() + INTERVAL;
                log.end_interval().iter().for_each(line);
                if let missed @ 1.. = std::mem::take(&mut log.missed) {
                    tracing::warn!(missed, "peers connected and disconnected without a line here: too many events, or too many names below one");
                }
            }
        }
    }
}

fn line(Changes(presence, count): &Changes) {
    let changes = (*count > 1).then_some(count);
    match presence {
        Presence::Up(info) => {
            let services = names(&info.services);
            tracing::info!(peer = %info.peer, session = %info.session, services, changes, "peer is up");
        }
        Presence::Down { peer, session, drained } => {
            tracing::info!(%peer, %session, drained, changes, "peer is down");
        }
        _ => {}
    }
}

/// The names of services in one text: those that fit, and the number of the others.
pub(super) fn names(services: &[ServiceName]) -> String {
    let mut text = String::new();
    for (at, service) in services.iter().enumerate() {
        let space = if at > 0 { " " } else { "" };
        if text.len() + space.len() + service.as_str().len() > MAX_NAMES {
            return format!("{text}{space}and {} more", services.len() - at);
        }
        text += space;
        text += service.as_str();
    }
    text
}

#[cfg(test)]
mod tests {
    use edge_transport::SessionId;

    use super::*;

    fn down(peer: &str, number: u64) -> Presence {
        let session = SessionId { instance: 1, number };
        Presence::Down { peer: PeerId::new(peer).unwrap(), session, drained: false }
    }

    #[test]
    fn peer_that_reconnects_has_one_line_in_an_interval() {
        let mut log = PresenceLog::default();
        let first: Vec<_> = (1..=100).filter_map(|number| log.changed(down("edge-1", number))).collect();
        assert_eq!(first, [Changes(down("edge-1", 1), 1)]);
        assert_eq!(log.changed(down("edge-2", 1)), Some(Changes(down("edge-2", 1), 1)), "of another peer");
        assert_eq!(log.end_interval(), [Changes(down("edge-1", 100), 99)], "the last state");
        assert_eq!(log.changed(down("edge-1", 101)), None);
        assert_eq!(log.end_interval(), [Changes(down("edge-1", 101), 1)]);
        assert_eq!((log.end_interval(), log.is_empty()), (vec![], true));
        assert_eq!(log.changed(down("edge-1", 102)), Some(Changes(down("edge-1", 102), 1)));
    }

    /// A certificate is valid for all names below its own.
    #[test]
    fn names_below_one_have_few_lines() {
        let mut log = PresenceLog::default();
        let lines = |log: &mut PresenceLog, top: &str| {
            (0..1000).filter(|at| log.changed(down(&format!("{top}/{at}"), 1)).is_some()).count()
        };
        assert_eq!((lines(&mut log, "edge-1"), lines(&mut log, "proxy")), (MAX_BELOW, MAX_BELOW));
        assert_eq!(log.missed, 2 * (1000 - MAX_BELOW as u64));
        assert!(log.changed(down("edge-2", 1)).is_some());
        assert_eq!(lines(&mut log, "edge-1"), 0);
        assert_eq!(log.end_interval().len(), MAX_BELOW, "of those that changed again");
        assert_eq!(lines(&mut log, "edge-1"), 0, "they are still counted");
        log.end_interval();
        log.end_interval();
        assert_eq!(lines(&mut log, "edge-1"), MAX_BELOW);
    }

    #[test]
    fn many_names_are_cut() {
        let services = |count: usize| -> Vec<_> {
            (0..count).map(|at| ServiceName::new(format!("{at}{}", "x".repeat(60))).unwrap()).collect()
        };
        assert_eq!(names(&services(2)), format!("0{0} 1{0}", "x".repeat(60)));
        let text = names(&services(100));
        assert!(text.len() <= MAX_NAMES + 16 && text.ends_with(" and 92 more"), "{text}");
        assert_eq!(names(&[]), "");
    }
}
