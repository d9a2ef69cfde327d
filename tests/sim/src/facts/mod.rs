//! The facts of a run, observed from outside: calls at their sidecars, frames at the agents' ends of links, and
//! executions in drivers. The oracle checks them.

mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use csi_proxy::{Call, CallId, Outcome};
use edge_transport::advanced::frame::{self, Frame, Kind, Part};
use edge_transport::{Reason, Request};

pub(crate) use self::record::{Attempt, Delivery, End, Execution, Instance, LinkFact, Replied};

use crate::answer::{Closing, wanted};
use crate::ids::{AttemptId, ExecutionId, InstanceId, LinkId, Moment, OperationId, OrderId};
use crate::plan::{Operation, Place, Plan};

/// Tolerance for the time that a process needs to handle an event.
const INSIDE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) plan: Arc<Plan>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) executions: Vec<Execution>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) links: BTreeMap<LinkId, LinkFact>,
    /// The term of the start of each proxy, and the highest one that it raised for a node.
    pub(crate) terms: BTreeMap<InstanceId, (u64, u64)>,
    /// The time at which each proxy last got a term, or raised it for a node.
    pub(crate) raised: BTreeMap<InstanceId, Duration>,
    /// The latest delivery of each call of a link.
    serving: BTreeMap<(LinkId, u64), usize>,
}

impl Facts {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            instances: Vec::new(),
            attempts: Vec::new(),
            executions: Vec::new(),
            deliveries: Vec::new(),
            links: BTreeMap::new(),
            terms: BTreeMap::new(),
            raised: BTreeMap::new(),
            serving: BTreeMap::new(),
        }
    }

    pub(crate) fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.plan.operation_of(id)
    }

    pub(crate) fn execution(&self, id: ExecutionId) -> Option<&Execution> {
        self.executions.get(id.0)
    }

    pub(crate) fn attempt(&self, id: AttemptId) -> Option<&Attempt> {
        self.attempts.get(id.0)
    }

    /// Returns whether two agents never ran concurrently. On a real node the lock of the state directory prevents
    /// concurrent agents. Without it they do not know of each other's operations.
    pub(crate) fn ran_in_turn(&self, one: InstanceId, other: InstanceId) -> bool {
        let instance = |id: InstanceId| self.instances.get(id.0);
        let before = |one: &Instance, other: &Instance| one.ended.is_some_and(|ended| ended < other.began);
        match (instance(one), instance(other)) {
            (Some(first), Some(second)) => one == other || before(first, second) || before(second, first),
            _ => false,
        }
    }

    /// Returns whether two processes run at the same place, so that they have one name.
    pub(crate) fn are_of_one_place(&self, one: InstanceId, other: InstanceId) -> bool {
        let place = |id: InstanceId| self.instances.get(id.0).map(|instance| instance.place);
        place(one).is_some() && place(one) == place(other)
    }

    /// Returns whether both operations change the same volume.
    pub(crate) fn are_about_one(&self, one: OperationId, other: OperationId) -> bool {
        match (self.operation(one), self.operation(other)) {
            (Some(one), Some(other)) => one.is_about(other),
            _ => false,
        }
    }

    pub(crate) fn begins(&mut self, place: Place, moment: Moment) -> InstanceId {
        self.instances.push(Instance { place, began: moment, ended: None, leaving: None });
        InstanceId(self.instances.len() - 1)
    }

    /// Records a new term of a proxy.
    pub(crate) fn has_term(&mut self, proxy: InstanceId, term: u64, now: Duration) {
        self.raised.insert(proxy, now);
        let (_, highest) = self.terms.entry(proxy).or_insert((term, term));
        *highest = term.max(*highest);
    }

    /// Records that a process is asked to end, or that another process of its place begins.
    pub(crate) fn leaves(&mut self, instance: InstanceId, moment: Moment) {
        if let Some(instance) = self.instances.get_mut(instance.0) {
            instance.leaving.get_or_insert(moment);
        }
    }

    pub(crate) fn dies(&mut self, instance: InstanceId, moment: Moment) {
        if let Some(instance) = self.instances.get_mut(instance.0) {
            instance.ended.get_or_insert(moment);
        }
        let links: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| link.instance == instance).map(|(id, _)| *id).collect();
        for link in links {
            self.link_lost(link, moment);
        }
    }

    pub(crate) fn label(&self, instance: InstanceId) -> String {
        let place = self.instances.get(instance.0).map_or(usize::MAX, |instance| instance.place);
        format!("{}#{}", self.plan.name(place), instance.0)
    }

    pub(crate) fn link_begins(&mut self, link: LinkId, instance: InstanceId, hub: (usize, u32), _: Moment) {
        self.links
            .insert(link, LinkFact { instance, hub, session: None, opened: None, lost: None, broken: None });
    }

    /// Records that the peer's end of a link has ended, and with it the link's calls at the peer.
    pub(crate) fn link_lost(&mut self, link: LinkId, moment: Moment) {
        if let Some(link) = self.links.get_mut(&link) {
            link.lost.get_or_insert(moment);
            link.broken.get_or_insert(moment);
        }
        for delivery in self.deliveries.iter_mut().filter(|delivery| delivery.link == link) {
            delivery.over.get_or_insert(moment);
        }
    }

    /// Records that the hub's end of a link has ended.
    pub(crate) fn link_broken(&mut self, link: LinkId, moment: Moment) {
        if let Some(link) = self.links.get_mut(&link) {
            link.broken.get_or_insert(moment);
        }
    }

    /// Records that a hub's process accepts no more calls.
    pub(crate) fn hub_ends(&mut self, hub: (usize, u32), moment: Moment) {
        for link in self.links.values_mut().filter(|link| link.hub == hub) {
            link.broken.get_or_insert(moment);
        }
    }

    pub(crate) fn asks(
        &mut self,
        order: OrderId,
        proxy: InstanceId,
        moment: Moment,
    ) -> Option<(AttemptId, OperationId)> {
        let order = self.plan.orders.get(order.0)?;
        let (operation, until) = (order.operation, order.timeout.map(|timeout| moment.at + timeout));
        self.attempts.push(Attempt {
            operation,
            proxy,
            asked: moment,
            until,
            sent_to: BTreeSet::new(),
            ended: None,
        });
        Some((AttemptId(self.attempts.len() - 1), operation))
    }

    pub(crate) fn ends(&mut self, attempt: AttemptId, end: End, moment: Moment) {
        if let End::Answered(outcome) = &end
            && let Some(closing) = Closing::read(outcome)
            && let Some(run) = self.executions.get_mut(closing.execution.0)
        {
            run.got = true;
        }
        if let Some(attempt) = self.attempts.get_mut(attempt.0) {
            attempt.ended = Some((moment, end));
        }
    }

    /// Records a frame that has arrived at a peer.
    pub(crate) fn arrived(&mut self, link: LinkId, instance: InstanceId, frame: &Frame, moment: Moment) {
        let (id, part) = match &frame.kind {
            Kind::Hello(_) => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.opened.get_or_insert(moment);
                }
                return;
            }
            Kind::Call(id, part) => (*id, part),
            _ => return,
        };
        let key = (link, id);
        match part {
            Part::Request(request) => {
                let Some((operation, attempt)) = self.requested(instance, request) else { return };
                // A duplicated frame is one request.
                if self.serving.contains_key(&key) {
                    return;
                }
                self.serving.insert(key, self.deliveries.len());
                self.deliveries.push(Delivery {
                    attempt,
                    operation,
                    agent: instance,
                    link,
                    at: moment,
                    to_session: request.to_session,
                    over: None,
                    refused: false,
                    refusal: None,
                });
            }
            Part::Cancel => {
                let delivery = self.serving.get(&key).and_then(|delivery| self.deliveries.get_mut(*delivery));
                if let Some(delivery) = delivery {
                    delivery.over.get_or_insert(moment);
                }
            }
            _ => {}
        }
    }

    /// Returns the operation and the attempt of a request.
    fn requested(&self, instance: InstanceId, request: &Request) -> Option<(OperationId, AttemptId)> {
        let call = Call::decode(request.metadata.clone(), request.body.clone()).ok()?;
        let driver = (0..self.plan.proxies)
            .find(|driver| crate::plan::driver_name(*driver) == call.driver.as_str())?;
        let place = self.instances.get(instance.0)?.place;
        wanted(&self.plan.operations, place, driver, call.method.as_str(), &call.body)
    }

    /// Records a frame that a peer has sent. Returns the end of an agent's answer, if the frame is one.
    pub(crate) fn sent(&mut self, link: LinkId, frame: &Frame, moment: Moment) -> Option<Replied> {
        let (id, reply) = match &frame.kind {
            Kind::Hello(hello) => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.session = Some(hello.session);
                }
                return None;
            }
            Kind::Call(_, Part::Request(request)) => {
                let call = Call::decode(request.metadata.clone(), request.body.clone()).ok()?;
                let attempt = self.attempts.get_mut(attempt_of(call.id)?.0)?;
                attempt.sent_to.extend(request.to_session.map(|session| session.instance));
                return None;
            }
            Kind::Call(id, Part::Reply(reply)) => (*id, reply),
            _ => return None,
        };
        let end = reply.end.as_ref()?;
        let delivery = *self.serving.get(&(link, id))?;
        let outcome = match end {
            frame::End::Finished(closing) => Outcome::decode(closing.clone()).ok(),
            _ => None,
        };
        let refused = match (end, &outcome) {
            (frame::End::Failed(failure), _) => {
                !matches!(failure.reason(), Reason::ServiceLost | Reason::LinkLost | Reason::Deadline)
            }
            (_, Some(outcome)) => {
                outcome.fault().is_some_and(|fault| fault.delivery() == csi_proxy::Delivery::NotSent)
            }
            _ => false,
        };
        let execution = outcome.as_ref().and_then(Closing::read).map(|closing| closing.execution);
        let fact = self.deliveries.get_mut(delivery)?;
        let first = fact.over.is_none();
        fact.over.get_or_insert(moment);
        fact.refused |= refused;
        fact.refusal = outcome.as_ref().and_then(Outcome::fault).cloned();
        let (attempt, asked, agent) = (fact.attempt, fact.at, fact.agent);
        let had = |ended: Moment| {
            self.deliveries
                .iter()
                .any(|copy| copy.attempt == attempt && copy.agent == agent && copy.at <= ended)
        };
        let ended = execution.and_then(|execution| self.executions.get(execution.0)?.ended);
        // A call that asked before and has lost its answer gets it again.
        let later = ended.is_some_and(|ended| asked > ended && !had(ended));
        if let Some(run) = execution.and_then(|execution| self.executions.get_mut(execution.0)) {
            run.given.get_or_insert(moment);
            if first && later && !run.later.contains(&attempt) {
                run.later.push(attempt);
            }
        }
        Some(Replied { delivery, outcome, execution })
    }

    pub(crate) fn executes(
        &mut self,
        operation: OperationId,
        attempt: AttemptId,
        agent: InstanceId,
        moment: Moment,
    ) -> ExecutionId {
        self.executions.push(Execution {
            operation,
            attempt,
            agent,
            began: moment,
            ended: None,
            answered: None,
            given: None,
            later: Vec::new(),
            got: false,
            unwanted: false,
        });
        ExecutionId(self.executions.len() - 1)
    }

    pub(crate) fn executed(&mut self, execution: ExecutionId, moment: Moment) -> Option<OperationId> {
        let run = self.executions.get(execution.0).filter(|run| run.ended.is_none())?;
        let (agent, operation) = (run.agent, run.operation);
        // An agent may not yet have processed what arrives at the same moment.
        let delivered = |over: Option<Moment>| over.is_some_and(|over| over.at + INSIDE < moment.at);
        let waits = |delivery: &Delivery| {
            delivery.agent == agent && delivery.operation == operation && !delivered(delivery.over)
        };
        let unwanted = !self.deliveries.iter().any(waits);
        let run = self.executions.get_mut(execution.0)?;
        run.ended = Some(moment);
        run.unwanted = unwanted;
        Some(operation)
    }

    pub(crate) fn answered(&mut self, execution: ExecutionId, moment: Moment) {
        let Some(run) = self.executions.get_mut(execution.0) else { return };
        if self.instances.get(run.agent.0).is_some_and(|agent| agent.ended.is_none()) {
            run.answered = Some(moment);
        }
    }

    /// Ends all executions of a driver whose process has ended. Their results are lost.
    pub(crate) fn driver_loses(&mut self, place: Place, driver: usize, moment: Moment) {
        let plan = Arc::clone(&self.plan);
        let of = |run: &Execution| {
            plan.operation_of(run.operation)
                .is_some_and(|operation| (operation.agent, operation.driver) == (place, driver))
        };
        for run in self.executions.iter_mut().filter(|run| run.ended.is_none() && of(run)) {
            run.ended = Some(moment);
        }
    }
}

/// Returns the id of an attempt's call, which is the same in all copies.
pub(crate) fn call_id(attempt: AttemptId) -> CallId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&(attempt.0 as u64 + 1).to_le_bytes());
    CallId::from_bytes(id)
}

fn attempt_of(id: CallId) -> Option<AttemptId> {
    let (number, _) = id.as_bytes().split_first_chunk::<8>()?;
    usize::try_from(u64::from_le_bytes(*number)).ok()?.checked_sub(1).map(AttemptId)
}
