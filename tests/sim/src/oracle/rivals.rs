//! While two agents of one name have links to two hubs, a proxy that knows of both sends no call to either.

use std::time::Duration;

use super::{Expect, FirstViolation};
use crate::facts::{Facts, LinkFact};
use crate::ids::Moment;

const PROPERTY: &str = "two live agents of one name get no call";

/// The time in which a hub reports an agent to its proxies.
const REPORTED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Rivals {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Rivals {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks the requests that have arrived at an agent now.
    pub(crate) fn arrives(&mut self, now: Moment, facts: &Facts) {
        if !self.expect.whole || !self.expect.informed {
            return;
        }
        let arrived = facts.deliveries.iter().rev().take_while(|delivery| delivery.at == now);
        for delivery in arrived {
            let (Some(link), Some(attempt)) =
                (facts.links.get(&delivery.link), facts.attempt(delivery.attempt))
            else {
                continue;
            };
            // Frames may be delayed: only calls count that were made when the proxy knew of both.
            let is_open = |link: &LinkFact| {
                link.opened.is_some_and(|opened| opened.at + REPORTED < attempt.asked.at)
                    && link.broken.is_none()
            };
            let knows = |hub: (usize, u32)| {
                facts
                    .links
                    .values()
                    .any(|own| own.instance == attempt.proxy && own.hub == hub && is_open(own))
            };
            let rival = facts.links.values().find(|rival| {
                rival.instance != delivery.agent
                    && rival.hub.0 != link.hub.0
                    && facts.are_of_one_place(rival.instance, delivery.agent)
                    && is_open(rival)
                    && knows(rival.hub)
            });
            if let Some(rival) = rival.filter(|_| is_open(link) && knows(link.hub)) {
                self.first_violation.broken(PROPERTY, now.at, || {
                    let (agent, rival_agent) = (facts.label(delivery.agent), facts.label(rival.instance));
                    format!(
                        "{:?} arrives at {agent} over hub {}, while {rival_agent} is at hub {} since {:?}",
                        delivery.attempt, link.hub.0, rival.hub.0, rival.opened
                    )
                });
            }
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
