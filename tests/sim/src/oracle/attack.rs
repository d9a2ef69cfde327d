//! An attacker harms no other tenant: it has no name but its own, reads no request or answer of a tenant, its requests
//! reach no driver of a tenant and its answers no sidecar. No lie about a term replaces a proxy, locks one out, or is
//! recorded at a node. That calls, results and bounds are as without an attacker is checked by the other properties.

use std::time::Duration;

use bytes::Bytes;
use csi_proxy::Outcome;
use edge_transport::PeerId;

use super::{Expect, FirstViolation};
use crate::answer::{ANSWER, SECRET};
use crate::attacker::{FORGED, Role};
use crate::facts::{End, Facts};
use crate::ids::{AttemptId, InstanceId, Moment};

const NAME: &str = "a peer has only the names that it has proven";
const DATA: &str = "no byte of a tenant reaches an attacker";
const CALLS: &str = "no call of an attacker reaches a driver of a tenant";
const ANSWERS: &str = "no byte of an attacker reaches a sidecar";
const TERMS: &str = "only a later proxy of the driver raises its term and replaces a proxy";

/// The longest time for a proxy to learn that a node is connected, if nothing delays the report.
const KNOWN_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Attack {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Attack {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks that the hub admitted an attacker under a name of its own.
    pub(crate) fn admitted(&mut self, now: Moment, role: Role, claimed: &PeerId) {
        if !role.proves(claimed) {
            self.first_violation.broken(NAME, now.at, || format!("{} is admitted as {claimed}", role.name()));
        }
    }

    /// Checks the bytes that arrive at an attacker. A corrupted frame may go to any peer.
    pub(crate) fn reads(&mut self, now: Moment, role: Role, bytes: &[u8]) {
        if self.expect.whole
            && let Some(found) = [SECRET, ANSWER].into_iter().find(|text| contains(bytes, text))
        {
            self.first_violation.broken(DATA, now.at, || {
                format!("{} reads {found:?} in {:?}", role.name(), String::from_utf8_lossy(bytes))
            });
        }
    }

    /// Checks a request that arrives at a driver of a tenant.
    pub(crate) fn executes(&mut self, now: Moment, path: &str, body: &[u8]) {
        if contains(body, FORGED) {
            self.first_violation.broken(CALLS, now.at, || format!("a driver gets a forged request: {path}"));
        }
    }

    /// Checks the end of a sidecar's call.
    pub(crate) fn ends(&mut self, now: Moment, attempt: AttemptId, end: &End, messages: &[Bytes]) {
        let forged = match end {
            End::Answered(Outcome { message, details, .. }) => {
                message.contains(FORGED) || contains(details, FORGED)
            }
            End::Failed(fault) => format!("{fault:?}").contains(FORGED),
            End::Left | End::Late | End::Died => false,
        };
        if forged || messages.iter().any(|message| contains(message, FORGED)) {
            self.first_violation.broken(ANSWERS, now.at, || format!("{attempt:?} ends with {end:?}"));
        }
    }

    /// Checks that a term that a node records was raised by a proxy of the driver.
    pub(crate) fn records(&mut self, now: Moment, driver: &str, term: u64, highest: Option<u64>) {
        if self.expect.whole && highest.is_none_or(|highest| term > highest) {
            self.first_violation.broken(TERMS, now.at, || {
                format!("a node records term {term} of {driver}; its proxies have reached {highest:?}")
            });
        }
    }

    /// Checks that a proxy that ends because it was replaced had a successor. A node that lies is believed if the proxy
    /// knows no other.
    pub(crate) fn replaced(&mut self, now: Moment, facts: &Facts, proxy: InstanceId) {
        let place_of = |instance: InstanceId| facts.instances.get(instance.0).map(|instance| instance.place);
        let term = facts.terms.get(&proxy).map_or(0, |(_, last)| *last);
        let mut others = facts.terms.iter().filter(|(other, _)| place_of(**other) == place_of(proxy));
        let open = |instance: InstanceId| {
            let links = facts.links.values().filter(move |link| link.instance == instance);
            links.filter(|link| link.broken.is_none()).filter_map(|link| Some((link.hub, link.opened?.at)))
        };
        let agents = (0..facts.instances.len()).map(InstanceId);
        let mut agents = agents.filter(|agent| place_of(*agent).is_some_and(|at| facts.plan.is_agent(at)));
        let knows_others = agents.any(|agent| {
            open(agent).any(|(hub, at)| {
                open(proxy).any(|(own, since)| own == hub && at.max(since) + KNOWN_AFTER < now.at)
            })
        });
        if self.expect.whole
            && self.expect.informed
            && knows_others
            && !others.any(|(_, (_, last))| *last > term)
        {
            self.first_violation.broken(TERMS, now.at, || {
                format!("{} ends as replaced, and no proxy has a later term", facts.label(proxy))
            });
        }
    }

    /// A proxy gets no term when it begins.
    pub(crate) fn has_no_term(&mut self, now: Moment, facts: &Facts, proxy: InstanceId) {
        if self.expect.whole {
            let label = || format!("{} has no term left", facts.label(proxy));
            self.first_violation.broken(TERMS, now.at, label);
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
