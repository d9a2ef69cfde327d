//! The task of a peer: dials hubs and owns the session.

mod connection;
mod dialing;

use std::collections::HashMap;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, watch};

use self::connection::Ended;
pub(super) use self::dialing::Paths;
use self::dialing::{DialError, DialedLink, dial_in_order};
use super::credit_window::{CountedBytes, CreditWindow, Waiting};
use super::handle::max_request;
use super::{Backoff, PeerSettings, PeerState, Refusal, ReplyEvent, ReplySender, Service};
use crate::fair_queue::FairQueue;
use crate::frame::{End, Failure, Hello, Reason, Request, WireFrame, cost};
use crate::frame_io::{FrameIo, WRITE_BATCH, now};
use crate::hub::{Policy, Requester};
use crate::id_map::IdMap;
use crate::name::{PeerId, ServiceName};
use crate::session::{Action, CloseReason, Event, InboundCallId, Incoming, Session};

/// Queued commands above which callers wait. With a small queue, a burst is written in small batches, so that the next
/// process works on the first batch while this process creates the last.
const COMMANDS: usize = 8;

/// Time after the hub's hello that a link must last to reset the backoff. Without this time, all peers of a hub that
/// admits and closes links would reconnect without a pause. The time is short for peers on a bad network: if links are
/// cut every half second, one of ten is cut before this age.
const MIN_LINK_DURATION: Duration = Duration::from_millis(50);

/// Sends the parts of a response to the caller.
type PartSender = mpsc::UnboundedSender<Result<ReplyEvent, Failure>>;

/// A call to be made. The channel is bounded: callers wait.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) number: u64,
    pub(super) target: PeerId,
    pub(super) request: Box<Request>,
    pub(super) deadline: Option<Instant>,
    pub(super) sender: PartSender,
}

/// Messages that must not wait. Bounded by the open calls: at most two credits and one end for each, and the messages that
/// their windows allow.
#[derive(Debug)]
pub(super) enum ControlMessage {
    Answer { inbound: InboundCallId, message: Option<(Bytes, CountedBytes)>, end: Option<End> },
    Credit { number: u64, bytes: u64 },
    Cancel { number: u64 },
    ServiceLost { inbound: InboundCallId },
    Redial,
    Drain { reason: String },
    Close,
}

/// A frame of a call, queued for the link.
struct QueuedFrame {
    frame: WireFrame,
    message: Option<QueuedMessage>,
}

/// What holds a queued message of a service until it is sent.
struct QueuedMessage {
    _counted: CountedBytes,
    /// Of a call that continues, and the cost of the message.
    window: Option<(Arc<CreditWindow>, u64)>,
}

/// Sends commands to the driver.
#[derive(Debug, Clone)]
pub(super) struct DriverHandle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) control: mpsc::UnboundedSender<ControlMessage>,
}

/// Whether and how the peer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotRequested,
    Drain,
    Close,
}

/// Why a new link replaces the current one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Redial {
    /// The user has requested it: the path in use is dialed first.
    Requested,
    /// The hub has asked the peer to leave: the path in use is dialed last.
    Leaving { reason: String },
}

pub(super) struct Driver {
    name: PeerId,
    session: Session,
    settings: PeerSettings,
    paths: Paths,
    services: HashMap<ServiceName, Arc<dyn Service>>,
    /// Which peers may call the services.
    policy: Arc<dyn Policy>,
    /// Delays after attempts that established no session.
    dial_backoff: Backoff,
    /// Delays after sessions. Separate from `dial_backoff`: an unreachable hub must not delay the replacement of a link that is
    /// lost later.
    reconnect_backoff: Backoff,
    handle: DriverHandle,
    commands: mpsc::Receiver<Command>,
    control: mpsc::UnboundedReceiver<ControlMessage>,
    state: watch::Sender<PeerState>,
    calls: IdMap<u64, PartSender>,
    windows: IdMap<InboundCallId, Arc<CreditWindow>>,
    /// What services have sent and waits.
    waiting: Waiting,
    /// Running service calls. This task polls them, because it must run anyway to read each request and to send the
    /// replies.
    service_calls: FuturesUnordered<BoxFuture<'static, ()>>,
    io: Option<FrameIo>,
    /// Bytes of frames of calls that the link has got since it had nothing to send.
    batch: usize,
    /// Further frames of calls: those of each caller, and of this peer's own calls, take turns.
    queue: FairQueue<PeerId, QueuedFrame>,
    /// The message of the answer that is handled now, until its frame is queued.
    answering: Option<QueuedMessage>,
    /// Index of the dialer of the current link.
    current_dialer: usize,
    closed: Option<CloseReason>,
    ending: Ending,
    /// Deadline of a requested drain.
    drain_by: Option<Instant>,
    /// Attempts to connect since the last connection.
    attempts: u64,
    /// Whether a new link replaces the current one: callers wait until the new link is open.
    failing_back: bool,
    /// Why a new link is requested in place of the current one, if it is.
    redial: Option<Redial>,
    /// Consecutive failbacks after which the preferred path failed again.
    failed_failbacks: u32,
}

impl Driver {
    pub(super) fn new(
        hello: Hello,
        paths: Paths,
        (services, policy): (HashMap<ServiceName, Arc<dyn Service>>, Arc<dyn Policy>),
        settings: PeerSettings,
        backoff: Backoff,
    ) -> (Self, DriverHandle, watch::Receiver<PeerState>) {
        let (command_sender, commands) = mpsc::channel(COMMANDS);
        let (control_sender, control) = mpsc::unbounded_channel();
        let waiting = Waiting::new(settings.session.max_inbound_bytes);
        let handle = DriverHandle { commands: command_sender, control: control_sender };
        let (state, state_receiver) =
            watch::channel(PeerState::Connecting { attempts: 0, last_error: None, refusal: None });
        let driver = Self {
            name: hello.peer.clone(),
            session: Session::new(hello, settings.session.clone()),
            settings,
            paths,
            services,
            policy,
            reconnect_backoff: backoff.clone(),
            dial_backoff: backoff,
            handle: handle.clone(),
            commands,
            control,
            state,
            calls: IdMap::default(),
            windows: IdMap::default(),
            waiting,
            service_calls: FuturesUnordered::new(),
            io: None,
            batch: 0,
            queue: FairQueue::default(),
            answering: None,
            current_dialer: 0,
            closed: None,
            ending: Ending::NotRequested,
            drain_by: None,
            attempts: 0,
            failing_back: false,
            redial: None,
            failed_failbacks: 0,
        };
        (driver, handle, state_receiver)
    }

    pub(super) async fn run(mut self) {
        // After a short outage, the path that worked last probably works again.
        let mut last_used = None;
        let mut preferred = None;
        while self.ending == Ending::NotRequested {
            let mut was_open = false;
            let dialed = match preferred.take() {
                Some(dialed) => Some(dialed),
                None => self.dial(last_used.take()).await,
            };
            if let Some(DialedLink { index, link }) = dialed {
                self.current_dialer = index;
                let Ended { opened, next } = self.connection(link).await;
                preferred = next;
                if let Some(opened) = opened {
                    was_open = true;
                    last_used = Some(index);
                    self.record_link_outcome(now().saturating_duration_since(opened), preferred.is_some());
                }
            }
            if self.ending == Ending::NotRequested && preferred.is_none() {
                let backoff = if was_open { &mut self.reconnect_backoff } else { &mut self.dial_backoff };
                let wait = backoff.next_wait();
                self.offline(tokio::time::sleep(wait)).await;
            }
        }
        self.stop();
    }

    /// Adjusts the backoff after a link that was open for `open_for` and was then lost, or replaced.
    fn record_link_outcome(&mut self, open_for: Duration, failback: bool) {
        self.dial_backoff.reset();
        if open_for >= MIN_LINK_DURATION {
            self.reconnect_backoff.reset();
        }
        if !failback && open_for >= self.settings.failback_interval {
            self.failed_failbacks = 0;
        }
    }

    fn set_connecting(&self, error: String, refusal: Option<Refusal>) {
        let (attempts, last_error) = (self.attempts, Some(error));
        self.state.send_replace(PeerState::Connecting { attempts, last_error, refusal });
    }

    /// Awaits `work` while there is no link. Returns `None` if the peer must end meanwhile.
    async fn offline<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.poll_services(cx);
            while self.poll_messages(cx).is_ready() {}
            if self.ending == Ending::NotRequested {
                work.as_mut().poll(cx).map(Some)
            } else {
                Poll::Ready(None)
            }
        })
        .await
    }

    /// Dials the path that worked last, then the others in order, and returns the first link.
    async fn dial(&mut self, last_used: Option<usize>) -> Option<DialedLink> {
        let (order, attempts) = (self.paths.order(last_used), Arc::new(AtomicU64::new(0)));
        let (dialers, bound) = (Arc::clone(self.paths.dialers()), self.settings.dial_timeout);
        let dial_future = dial_in_order(dialers, order, bound, Arc::clone(&attempts));
        let dialed = self.offline(dial_future).await;
        self.attempts += attempts.load(Ordering::Relaxed);
        match dialed? {
            Ok(dialed) => Some(dialed),
            Err(DialError { cause, refusal }) => {
                self.set_connecting(cause, refusal);
                None
            }
        }
    }

    /// Polls the service calls, which send their replies as commands.
    fn poll_services(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = self.service_calls.poll_next_unpin(cx) {}
    }

    /// Moves running service calls into a separate task, where they complete.
    fn detach_services(&mut self) {
        let rest = std::mem::take(&mut self.service_calls);
        if !rest.is_empty() {
            tokio::spawn(rest.for_each(|()| std::future::ready(())));
        }
    }

    /// Handles one command and one control message: neither kind keeps the other waiting. Ready if any was handled.
    fn poll_messages(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let commands = self.poll_command(cx);
        let control = self.poll_control(cx);
        if commands.is_ready() { commands } else { control }
    }

    fn poll_command(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Poll::Ready(Some(command)) = self.commands.poll_recv(cx) else { return Poll::Pending };
        self.command(command);
        Poll::Ready(())
    }

    fn poll_control(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Poll::Ready(Some(message)) = self.control.poll_recv(cx) else { return Poll::Pending };
        self.on_control(message);
        Poll::Ready(())
    }

    fn command(&mut self, Command { number, target, request, deadline, sender }: Command) {
        // The cancel may have overtaken the call: commands wait, control messages do not.
        if !sender.is_closed() {
            self.calls.insert(number, sender);
            self.handle(Event::Call { number, target, request: *request, deadline });
        }
    }

    fn on_control(&mut self, message: ControlMessage) {
        match message {
            ControlMessage::Answer { inbound, message, end } => self.answer(inbound, message, end),
            ControlMessage::Credit { number, bytes } => self.handle(Event::Credit { number, bytes }),
            ControlMessage::Cancel { number } => {
                if self.calls.remove(&number).is_some() {
                    self.handle(Event::Cancel { number });
                }
            }
            ControlMessage::ServiceLost { inbound } => {
                let failure = Failure::new(Reason::ServiceLost, "the service ended without an answer");
                self.answer(inbound, None, Some(End::Failed(failure)));
            }
            // Without a link the next attempt is a new link anyway.
            ControlMessage::Redial => self.redial = self.io.is_some().then_some(Redial::Requested),
            ControlMessage::Drain { reason } => {
                self.ending = Ending::Drain;
                self.drain_by = Some(now() + self.settings.session.drain_timeout);
                if self.io.is_some() {
                    self.state.send_replace(PeerState::Draining { reason: reason.clone() });
                    self.handle(Event::Drain { reason });
                }
            }
            ControlMessage::Close => {
                // Calls that were accepted before end with their link.
                while let Ok(command) = self.commands.try_recv() {
                    self.command(command);
                }
                self.ending = Ending::Close;
                self.drain_by = None;
                self.handle(Event::Close);
            }
        }
    }

    fn answer(&mut self, inbound: InboundCallId, message: Option<(Bytes, CountedBytes)>, end: Option<End>) {
        let window = if end.is_some() {
            self.windows.remove(&inbound);
            None
        } else {
            self.windows.get(&inbound).map(Arc::clone)
        };
        let message = message.map(|(message, counted)| {
            let window = window.map(|window| (window, cost(&message)));
            self.answering = Some(QueuedMessage { _counted: counted, window });
            message
        });
        self.handle(Event::Answer { inbound, message, end });
        self.answering = None;
    }

    /// Moves the next frames of calls to the link, once it has taken the previous ones.
    fn fill_link(&mut self) {
        if self.io.as_ref().is_some_and(|io| io.waiting() == 0) {
            self.batch = 0;
        }
        while self.batch < WRITE_BATCH
            && let Some(queued) = self.queue.pop()
        {
            self.send_next(queued);
        }
    }

    /// Sends a frame of a call in its turn.
    fn send(&mut self, owner: &PeerId, queued: QueuedFrame) {
        if self.queue.len() == 0 && self.batch < WRITE_BATCH {
            self.send_next(queued);
        } else if self.io.is_some() {
            self.queue.push(owner, queued.frame.len(), queued);
        }
    }

    fn send_next(&mut self, QueuedFrame { frame, message }: QueuedFrame) {
        let Some(io) = &mut self.io else { return };
        self.batch += frame.len();
        io.push(frame);
        if let Some((window, cost)) = message.and_then(|message| message.window) {
            window.on_sent(cost);
        }
    }

    fn handle(&mut self, event: Event) {
        self.session.handle(event, now());
        while let Some(action) = self.session.poll_action() {
            self.execute(action);
        }
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Send { frame, owner: None } => {
                if let Some(io) = &mut self.io {
                    io.push(frame);
                }
            }
            Action::Send { frame, owner: Some(owner) } => {
                let message = self.answering.take();
                self.send(&owner, QueuedFrame { frame, message });
            }
            Action::Reply { number, message, end } => {
                // Send errors are ignored: a cancel follows when the caller has dropped its stream.
                let Some(sender) = self.calls.get(&number) else { return };
                if let Some(message) = message {
                    let _ = sender.send(Ok(ReplyEvent::Message(message)));
                }
                if let Some(end) = end {
                    let _ = sender.send(match end {
                        End::Finished(closing) => Ok(ReplyEvent::Finished(closing)),
                        End::Failed(failure) => Err(failure),
                    });
                    self.calls.remove(&number);
                }
            }
            Action::Serve(incoming) => self.serve(incoming),
            Action::Credit { inbound, bytes } => {
                if let Some(window) = self.windows.get(&inbound) {
                    window.grant(bytes);
                }
            }
            Action::Cancelled { inbound } => {
                if let Some(window) = self.windows.remove(&inbound) {
                    window.close();
                }
            }
            Action::Opened(remote) => {
                let Some(io) = &self.io else { return };
                self.attempts = 0;
                self.failing_back = false;
                let address = self.paths.address(self.current_dialer).to_owned();
                let kind = io.link().kind();
                tracing::info!(%address, %kind, hub = %remote.peer, "connected");
                let max_frame = self.settings.session.max_frame.min(remote.max_frame);
                self.state.send_replace(PeerState::Connected {
                    address,
                    kind,
                    hub: remote.peer,
                    max_request: max_request(max_frame),
                    since: now(),
                });
            }
            Action::Draining { reason } => {
                // A peer with services is needed at another hub at once; one without has only its open calls.
                if !self.services.is_empty() {
                    self.redial = Some(Redial::Leaving { reason: reason.clone() });
                }
                self.state.send_replace(PeerState::Draining { reason });
            }
            Action::Close(reason) => self.closed = Some(reason),
        }
    }

    fn serve(&mut self, incoming: Incoming) {
        let Incoming { inbound, source, owner, request } = incoming;
        // The session passes on only calls of services that the hello names.
        let Some(service) = request.service.find_in(&self.services).map(Arc::clone) else { return };
        let requester = Requester { peer: &source, services: &[] };
        if !self.policy.may_call(&requester, &self.name, &request.service) {
            tracing::debug!(%source, service = %request.service, "call refused by the policy of this peer");
            let detail = format!("{} does not allow {source} to call {}", self.name, request.service);
            return self.answer(inbound, None, Some(End::Failed(Failure::new(Reason::Forbidden, detail))));
        }
        let window = Arc::new(CreditWindow::new(request.credit));
        self.windows.insert(inbound, Arc::clone(&window));
        let replies = ReplySender::new(inbound, owner, window, self.waiting.clone(), self.handle.clone());
        tracing::debug!(%source, service = %request.service, "call");
        let answer = async move { service.call(source, request, replies).await };
        // A call that panics is dropped, which reports SERVICE_LOST to its caller. Other calls continue.
        self.service_calls.push(AssertUnwindSafe(answer).catch_unwind().map(drop).boxed());
    }

    /// Ends all calls and closes the peer.
    fn stop(mut self) {
        self.detach_services();
        self.handle(Event::LinkLost);
        self.commands.close();
        self.control.close();
        for window in self.windows.values() {
            window.close();
        }
        // Dropping the sender ends the caller's stream.
        while self.commands.try_recv().is_ok() {}
        self.calls.clear();
        self.state.send_replace(PeerState::Closed);
    }
}
