//! Which addresses of the hubs have a peer. Pure: events in, actions out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an address is not dialed after the hub there has refused the name as in use, while another hub is connected: it
/// is probably a second address of a hub that the set is connected to.
const SECOND_PATH_PAUSE: Duration = Duration::from_secs(60);

/// What the peer at an address reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Connected,
    /// Not connected. Whether the hub has refused the name because another peer uses it.
    Away {
        name_in_use: bool,
    },
}

/// A change of the peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a peer at this address.
    Open(Arc<str>),
    /// Close the peer at this address.
    Close(Arc<str>),
}

#[derive(Debug)]
struct Member {
    /// The name, by its index, that had this address when it was resolved last; `None` if it has it no more.
    name: Option<usize>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Dialing,
    Connected,
    Pausing { until: Instant },
}

/// The addresses of all names.
///
/// | Address | Event | Then |
/// |---|---|---|
/// | new | its name has it | a peer is started |
/// | connected | its name has it no more | its peer stays: a hub that ends is no longer listed while its last calls end |
/// | not connected | its name has it no more | its peer is closed |
/// | dialing | the name of the peer is in use there, another address is connected | its peer is closed for a minute |
/// | pausing | the minute is over, or no address is connected | a peer is started |
#[derive(Debug, Default)]
pub(super) struct Members(BTreeMap<Arc<str>, Member>);

impl Members {
    /// Records the addresses that a name has now.
    pub(super) fn resolved(&mut self, name: usize, addresses: &[Arc<str>], actions: &mut Vec<Action>) {
        for member in self.0.values_mut().filter(|member| member.name == Some(name)) {
            member.name = None;
        }
        for address in addresses {
            let member = self.0.entry(Arc::clone(address)).or_insert_with(|| {
                actions.push(Action::Open(Arc::clone(address)));
                Member { name: None, state: State::Dialing }
            });
            member.name = Some(name);
        }
        self.close_unlisted(actions);
    }

    pub(super) fn contains(&self, address: &str) -> bool {
        self.0.contains_key(address)
    }

    /// Records the state of the peer at an address.
    pub(super) fn reported(
        &mut self,
        address: &Arc<str>,
        report: Report,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let others =
            self.0.iter().any(|(other, member)| other != address && member.state == State::Connected);
        let Some(member) = self.0.get_mut(address) else { return };
        if matches!(member.state, State::Pausing { .. }) {
            // A late report of the peer that was closed.
            return;
        }
        member.state = match report {
            Report::Connected => State::Connected,
            Report::Away { name_in_use: true } if others => {
                actions.push(Action::Close(Arc::clone(address)));
                State::Pausing { until: now + SECOND_PATH_PAUSE }
            }
            Report::Away { .. } => State::Dialing,
        };
        self.close_unlisted(actions);
        self.tick(now, actions);
    }

    /// Ends pauses.
    pub(super) fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let connected = self.0.values().any(|member| member.state == State::Connected);
        for (address, member) in &mut self.0 {
            if let State::Pausing { until } = member.state
                && (!connected || now >= until)
            {
                member.state = State::Dialing;
                actions.push(Action::Open(Arc::clone(address)));
            }
        }
    }

    fn close_unlisted(&mut self, actions: &mut Vec<Action>) {
        self.0.retain(|address, member| {
            let stays = member.name.is_some() || member.state == State::Connected;
            if !stays && member.state == State::Dialing {
                actions.push(Action::Close(Arc::clone(address)));
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAY: Report = Report::Away { name_in_use: false };
    const IN_USE: Report = Report::Away { name_in_use: true };

    struct World {
        members: Members,
        now: Instant,
    }

    fn open(address: &str) -> Action {
        Action::Open(address.into())
    }

    fn close(address: &str) -> Action {
        Action::Close(address.into())
    }

    impl World {
        fn new() -> Self {
            Self { members: Members::default(), now: Instant::now() }
        }

        fn resolved(&mut self, name: usize, addresses: &[&str]) -> Vec<Action> {
            let addresses: Vec<Arc<str>> = addresses.iter().map(|address| (*address).into()).collect();
            let mut actions = Vec::new();
            self.members.resolved(name, &addresses, &mut actions);
            actions
        }

        fn reported(&mut self, address: &str, report: Report) -> Vec<Action> {
            let mut actions = Vec::new();
            self.members.reported(&address.into(), report, self.now, &mut actions);
            actions
        }

        fn after(&mut self, time: Duration) -> Vec<Action> {
            self.now += time;
            let mut actions = Vec::new();
            self.members.tick(self.now, &mut actions);
            actions
        }
    }

    #[test]
    fn each_address_of_a_name_has_a_peer() {
        let mut world = World::new();
        assert_eq!(world.resolved(0, &["a", "b"]), [open("a"), open("b")]);
        assert_eq!(world.resolved(0, &["b", "c"]), [open("c"), close("a")]);
        assert_eq!(world.resolved(1, &["d"]), [open("d")]);
        assert_eq!(world.resolved(0, &["c"]), [close("b")]);
    }

    #[test]
    fn unlisted_address_is_kept_while_it_is_connected() {
        let mut world = World::new();
        world.resolved(0, &["a", "b"]);
        world.reported("a", Report::Connected);
        assert_eq!(world.resolved(0, &["b"]), []);
        assert_eq!(world.reported("a", AWAY), [close("a")]);
        assert_eq!(world.resolved(0, &["a", "b"]), [open("a")], "the address is listed again");
    }

    #[test]
    fn a_second_address_of_a_connected_hub_pauses() {
        let mut world = World::new();
        world.resolved(0, &["v4", "v6"]);
        world.reported("v4", Report::Connected);
        assert_eq!(world.reported("v6", AWAY), [], "it may be another hub that is down");
        assert_eq!(world.reported("v6", IN_USE), [close("v6")]);
        assert_eq!(world.after(SECOND_PATH_PAUSE / 2), []);
        assert_eq!(world.after(SECOND_PATH_PAUSE), [open("v6")]);
        world.reported("v6", IN_USE);
        assert_eq!(world.reported("v4", AWAY), [open("v6")], "the other path may still work");
    }

    #[test]
    fn a_name_that_another_process_uses_is_tried_again_by_the_peer() {
        let mut world = World::new();
        world.resolved(0, &["a", "b"]);
        assert_eq!(world.reported("a", IN_USE), []);
        assert_eq!(world.reported("b", IN_USE), []);
    }

    #[test]
    fn an_address_that_pauses_and_is_no_longer_listed_is_forgotten() {
        let mut world = World::new();
        world.resolved(0, &["a", "b"]);
        world.reported("a", Report::Connected);
        world.reported("b", IN_USE);
        assert_eq!(world.resolved(0, &["a"]), [], "its peer is closed already");
        assert_eq!(world.after(2 * SECOND_PATH_PAUSE), []);
    }
}
