//! No call is lost if its node returns in time: one that was not sent within the reconnect grace, and one that may have begun,
//! at the same instance, within half a minute.

use std::collections::BTreeSet;
use std::time::Duration;

use csi_proxy::{Delivery as Proof, Fault};

use super::once::is_void;
use super::{Expect, FirstViolation};
use crate::facts::{Attempt, End, Execution, Facts, Instance, LinkFact};
use crate::ids::{AttemptId, InstanceId, Moment};

const PROPERTY: &str = "no call is lost if its node returns in time";

/// The reconnect grace.
const GRACE: Duration = Duration::from_secs(5);
/// How long a call waits for the instance that may have begun it.
const INSTANCE_WAIT: Duration = Duration::from_secs(30);
/// How long a result is kept for copies of its call.
const REPLAYED: Duration = Duration::from_secs(60);
/// The longest time for a proxy to learn of a change and for a call to be sent and answered.
const MARGIN: Duration = Duration::from_secs(3);
/// A call ends up to this long before its sidecar's timeout.
const SOON: Duration = Duration::from_millis(250);
/// How long a process that has died may be taken for a second agent of its name.
const CONTESTED: Duration = Duration::from_secs(23);
/// The number of losses of a node within a time, from which on the node has no grace.
const FLAPPING: (usize, Duration) = (3, Duration::from_secs(65));

#[derive(Debug)]
pub(crate) struct Lost {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Lost {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// A sidecar's call ends.
    pub(crate) fn ends(&mut self, now: Moment, facts: &Facts, id: AttemptId, end: &End) {
        let End::Failed(fault) = end else { return };
        let Some(attempt) = facts.attempt(id).filter(|_| self.expect.informed && fault.is_transient()) else {
            return;
        };
        // A call waits no longer than its sidecar.
        if attempt.until.is_some_and(|until| until <= now.at + SOON) {
            return;
        }
        let Some(wanted) = facts.operation(attempt.operation) else { return };
        let Some(agent) = stays(facts, wanted.agent, attempt) else { return };
        if facts.instances.get(attempt.proxy.0).is_none_or(|proxy| proxy.leaving.is_some()) {
            return;
        }
        if matches!(fault, Fault::TwoAgents { .. }) && is_contested(facts, wanted.agent, agent, attempt) {
            return;
        }
        let ups = ups(facts, attempt.proxy, agent, now.at);
        let broken = match fault.delivery() {
            // The call waits at most the grace in total, and only for a node that was connected that recently.
            Proof::NotSent => {
                let known = ups.iter().any(|(from, _)| *from + MARGIN < attempt.asked.at);
                let away = now.at - attempt.asked.at - covered(&ups, attempt.asked.at, now.at);
                let recently = ups.iter().any(|(from, to)| {
                    *from + MARGIN < attempt.asked.at && *to + GRACE > attempt.asked.at + MARGIN
                });
                known && recently && away + MARGIN < GRACE && !flaps(facts, wanted.agent, now.at)
            }
            Proof::Unknown => {
                let last = ups.iter().map(|(_, to)| *to).max();
                // A call that was sent to another instance, which the hub still considered connected, ends with that
                // instance.
                let instances: BTreeSet<u64> = facts
                    .links
                    .values()
                    .filter(|link| link.instance == agent)
                    .filter_map(|link| Some(link.session?.instance))
                    .collect();
                // A call that may have begun under one term is not sent under another.
                let one_term =
                    facts.raised.get(&attempt.proxy).is_some_and(|raised| *raised < attempt.asked.at);
                wanted.repeats()
                    && one_term
                    && attempt.sent_to == instances
                    && !is_over(facts, id, attempt, agent, now)
                    && last.is_some_and(|last| now.at < last + INSTANCE_WAIT.saturating_sub(MARGIN))
                    && last.is_some_and(|last| last > attempt.asked.at)
                    && matches!(fault, Fault::LinkLost { .. })
            }
        };
        if broken {
            self.first_violation.broken(PROPERTY, now.at, || {
                format!(
                    "{id:?}, made at {:?}, ends with {fault:?}; its path was available {ups:?}",
                    attempt.asked.at
                )
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}

/// Returns whether the agent refused the last copy of a call because the call's result is no longer kept. A call does
/// not begin twice.
fn is_over(facts: &Facts, id: AttemptId, attempt: &Attempt, agent: InstanceId, now: Moment) -> bool {
    let copies = facts.deliveries.iter().filter(|copy| copy.attempt == id && copy.agent == agent);
    let refusals: Vec<&Fault> = copies.filter_map(|copy| copy.refusal.as_ref()).collect();
    let of_call = |run: &&Execution| run.agent == agent && run.operation == attempt.operation;
    let mut runs = facts.executions.iter().filter(of_call);
    if refusals.is_empty() {
        return false;
    }
    // A copy waits for its turn again, with a limit, and its driver may be down.
    refusals.iter().any(|refusal| !matches!(refusal, Fault::StaleCall { .. } | Fault::AlreadyBegun { .. }))
        || facts.operation(attempt.operation).is_some_and(|wanted| !wanted.is_kept())
        || runs.any(|run| {
            let old = run.ended.is_some_and(|ended| now.at > ended.at + REPLAYED.saturating_sub(MARGIN));
            run.answered.is_none() || old || is_void(facts, run, now)
        })
}

/// Returns the process of an agent's place, if exactly one process ran during the whole attempt.
fn stays(facts: &Facts, place: usize, attempt: &Attempt) -> Option<InstanceId> {
    let during = |instance: &Instance| {
        instance.place == place && instance.ended.is_none_or(|ended| ended > attempt.asked)
    };
    let mut found = facts.instances.iter().enumerate().filter(|(_, instance)| during(instance));
    let (index, instance) = found.next()?;
    let stays = instance.began < attempt.asked && instance.ended.is_none() && instance.leaving.is_none();
    (stays && found.next().is_none()).then_some(InstanceId(index))
}

/// Returns whether another process of the agent's place was connected to another hub, as that hub may still see it: a dead
/// link is found within 10 s, and for 10 s more no call is sent.
fn is_contested(facts: &Facts, place: usize, agent: InstanceId, attempt: &Attempt) -> bool {
    let hubs: BTreeSet<_> =
        facts.links.values().filter(|link| link.instance == agent).map(|link| link.hub).collect();
    facts.links.values().any(|link| {
        let of_place = |instance: &Instance| instance.place == place;
        link.instance != agent
            && facts.instances.get(link.instance.0).is_some_and(of_place)
            && hubs.iter().any(|hub| *hub != link.hub)
            && link.broken.is_none_or(|broken| broken.at + CONTESTED > attempt.asked.at)
    })
}

/// Returns the intervals during which both processes had links to the same hub.
fn ups(facts: &Facts, proxy: InstanceId, agent: InstanceId, now: Duration) -> Vec<(Duration, Duration)> {
    let open = |link: &LinkFact| {
        let from = link.opened?;
        Some((from.at, link.broken.map_or(now, |broken| broken.at)))
    };
    let of = |instance: InstanceId| facts.links.values().filter(move |link| link.instance == instance);
    let both = of(proxy).flat_map(|near| of(agent).map(move |far| (near, far)));
    both.filter(|(near, far)| near.hub == far.hub)
        .filter_map(|(near, far)| {
            let ((from, to), (other_from, other_to)) = (open(near)?, open(far)?);
            let (from, to) = (from.max(other_from), to.min(other_to));
            (from < to).then_some((from, to))
        })
        .collect()
}

/// Returns how much of a time is covered by these intervals, which do not overlap.
fn covered(ups: &[(Duration, Duration)], from: Duration, to: Duration) -> Duration {
    ups.iter().map(|(begins, ends)| (*ends).min(to).saturating_sub((*begins).max(from))).sum()
}

/// Returns whether a node was lost so often that it has no grace.
fn flaps(facts: &Facts, place: usize, now: Duration) -> bool {
    let of_place = |instance: InstanceId| {
        facts.instances.get(instance.0).is_some_and(|instance| instance.place == place)
    };
    let lost = |link: &&LinkFact| {
        of_place(link.instance) && link.broken.is_some_and(|broken| broken.at + FLAPPING.1 > now)
    };
    facts.links.values().filter(lost).count() >= FLAPPING.0
}
