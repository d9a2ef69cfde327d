//! The processes, each assembled from the shipped parts as the binaries are.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::DriverName;
use csi_proto::name::InvalidDriverName;
use csi_proxy::{
    DEFAULT_RECONNECT_GRACE, Dispatcher, Driver, NodeWatch, Reachability, RetryRelay, ServeCsi as _,
    TermError,
};
use edge_transport::advanced::{HubSettings, PeerSettings, SessionSettings};
use edge_transport::hub::{InvalidRule, Rules};
use edge_transport::link::Dialer;
use edge_transport::peer::PeerBuilder;
use edge_transport::{Hub, InvalidName, Peer, PeerId};
use tokio::sync::Notify;

use crate::attacker::Role;
use crate::context::Context;
use crate::driver::connector;
use crate::ids::InstanceId;
use crate::network::{Door, MAX_FRAME, Network, listen};
use crate::plan::{LinkProfile, Place, Plan, driver_name};
use crate::planted::Planted;
use crate::refresh::refresh;
use crate::rng::Rng;
use crate::sidecar::ProxyEndpoint;
use crate::simulation::{Process, ProcessKind, Step, StepSender};
use crate::terms::{Disk, Starts, UsedTerms};

/// The service of the agents.
const SERVICE: &str = "csi";

/// Time limit of a draining process for its open calls.
pub(crate) const DRAINING: Duration = Duration::from_secs(5);

/// Times and bounds of all parts.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) session: SessionSettings,
    pub(crate) hub: HubSettings,
    /// The longest time that a call waits for its turn.
    pub(crate) wait: Duration,
}

impl Bounds {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut session = SessionSettings::default();
        session.max_frame = MAX_FRAME;
        session.drain_timeout = DRAINING;
        session.credit = 2_000;
        let mut hub = HubSettings::default();
        if plan.narrow {
            session.max_outbound_calls = 3;
            session.max_inbound_calls = 3;
            hub.max_calls = 2;
            // One sender gets half.
            hub.queue_frames = 16;
            hub.queue_bytes = 8 * 1024;
            hub.total_queue_bytes = 16 * 1024;
        } else {
            hub.max_calls = 64;
        }
        hub.session = session.clone();
        Self { session, hub, wait: Duration::from_secs(2) }
    }
}

/// A process cannot begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Transport(#[from] edge_transport::StartError),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Driver(#[from] InvalidDriverName),
    #[error(transparent)]
    Term(#[from] TermError),
    #[error(transparent)]
    Rule(#[from] InvalidRule),
}

/// A hub and the network to it.
pub(crate) fn hub(plan: &Plan, bounds: &Bounds, index: usize) -> Result<(Hub, Door), StartError> {
    let (listener, door) = listen(format!("sim:hub-{index}"));
    let hub = Hub::builder().listener(Box::new(listener)).policy(policy(plan)?).presence();
    Ok((hub.settings(bounds.hub.clone()).start()?, door))
}

/// Each proxy may call its own driver on every node, and an attacker the driver after these. No other call is allowed.
fn policy(plan: &Plan) -> Result<Rules, StartError> {
    let callers = (plan.agents..plan.places()).map(|place| plan.name(place));
    let callers = callers.chain([Role::Caller.name().to_owned()]).enumerate();
    let rule = |(driver, name): (usize, String)| {
        let rule: Rules = format!("{name}=edge-*").parse()?;
        Ok(rule.with_service(&format!("{SERVICE}/{}", driver_name(driver)))?)
    };
    Ok(Rules::new(callers.map(rule).collect::<Result<Vec<_>, StartError>>()?))
}

fn peer(
    context: &Arc<Context>,
    bounds: &Bounds,
    place: Place,
    instance: InstanceId,
    seed: u64,
) -> Result<PeerBuilder, StartError> {
    let plan = context.with(|inner| Arc::clone(&inner.plan));
    let name = match plan.is_agent(place) {
        true => plan.name(place),
        // A unique name, as in the binary, since two proxies of one driver may be connected concurrently.
        false => format!("{}/{}", plan.name(place), instance.0),
    };
    let proven = PeerId::new(plan.name(place))?;
    let profile = plan.profiles.get(place).copied();
    let mut settings = PeerSettings::default();
    settings.session = bounds.session.clone();
    let builder = Peer::builder(PeerId::new(name)?).seed(seed).settings(settings);
    let profile =
        profile.unwrap_or(LinkProfile { lanes: false, latency: Duration::ZERO, jitter: Duration::ZERO });
    let dialers = (0..plan.hubs).map(|hub| {
        let (context, address) = (Arc::clone(context), format!("sim:hub-{hub}"));
        let proven = proven.clone();
        Box::new(Network { context, place, instance, proven, hub, profile, address }) as Box<dyn Dialer>
    });
    Ok(builder.equal_dialers(dialers))
}

/// An agent and its drivers.
pub(crate) fn agent(
    context: &Arc<Context>,
    bounds: &Bounds,
    place: Place,
    seed: u64,
) -> Result<Process, StartError> {
    let instance = context.begins(place);
    let disk = Disk { context: Arc::clone(context), place, instance };
    let dispatcher = Dispatcher::new().with_terms(disk);
    // The last driver is the one that an attacker may call.
    for driver in 0..=context.with(|inner| inner.plan.proxies) {
        if let Some((name, address, connector)) = connector(context, place, driver, instance) {
            dispatcher.register(Driver::with_connector(name, address, &connector));
        }
    }
    let peer = peer(context, bounds, place, instance, seed)?
        .serve_csi_with_node_calls(dispatcher.clone())
        .start()?;
    Ok(Process { instance, hubs: peer.into(), kind: ProcessKind::Agent { dispatcher } })
}

/// A proxy.
pub(crate) async fn proxy(
    context: &Arc<Context>,
    bounds: &Bounds,
    place: Place,
    seed: u64,
    requests: &StepSender,
) -> Result<Process, StartError> {
    let instance = context.begins(place);
    let driver = place - context.with(|inner| inner.plan.agents);
    let hubs = peer(context, bounds, place, instance, seed)?.start_at_each_hub()?;
    let planted = context.planted;
    let grace = if planted == Some(Planted::NoGrace) { Duration::ZERO } else { DEFAULT_RECONNECT_GRACE };
    let reachability = Reachability::new(grace);
    let name = DriverName::new(driver_name(driver))?;
    let mut nodes = NodeWatch::new(hubs.clone(), &name, reachability.clone())?;
    let relay = nodes.relay();
    tokio::spawn(async move { while nodes.next().await.is_some() {} });
    let starts = Starts { context: Arc::clone(context), driver, instance };
    let below = UsedTerms {
        relay: Planted::below(planted, relay),
        context: Arc::clone(context),
        driver,
        instance,
        last: Mutex::default(),
    };
    let relay = match RetryRelay::start(below, reachability, starts).await {
        Ok(relay) => relay,
        Err(error) => {
            context.has_no_term(instance);
            return Err(error.into());
        }
    };
    let ended = Arc::new(Notify::new());
    let (replaced, dropped, requests) =
        (relay.clone(), Arc::clone(&ended).notified_owned(), requests.clone());
    let observer = Arc::clone(context);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = dropped => {}
            _ = replaced.replaced() => {
                observer.replaced(instance);
                // As the binary does it.
                let _ = requests.send((Duration::ZERO, Step::End { instance }));
            }
        }
    });
    let endpoint = ProxyEndpoint { instance, relay: Planted::above(planted, relay), ended };
    tokio::spawn(refresh(Arc::clone(context), endpoint.clone(), driver, Rng::new(seed)));
    Ok(Process { instance, hubs, kind: ProcessKind::Proxy { endpoint } })
}
