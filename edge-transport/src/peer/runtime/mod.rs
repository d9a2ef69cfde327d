//! The task of a peer: dials, and owns the session.

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
use self::dialing::{Road, dialling};
use super::flow_control::Gate;
use super::handle::max_request;
use super::{Backoff, PeerSettings, PeerState, ReplyEvent, ReplySender, Service};
use crate::counted::ByCount;
use crate::frame::{End, Failure, Hello, Reason, Request};
use crate::link::Dialer;
use crate::name::{PeerId, ServiceName};
use crate::pump::{Pump, now};
use crate::session::{Action, CloseReason, Event, Incoming, ServingId, Session};

/// Commands that may wait before callers and services are held back. Few, so that a burst is written in small batches, and the
/// next process works on the first of them while this one still makes the last.
const COMMANDS: usize = 8;

/// A link that ends sooner after the hub's hello counts as ended at once. After several of these in a row the peer waits as long as
/// for a hub that it cannot reach: else all peers of a hub that admits and closes would dial it without a pause. Short, since a bad
/// network that cuts links every half second cuts one of ten at such an age.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Where the parts of an answer go.
type Parts = mpsc::UnboundedSender<Result<ReplyEvent, Failure>>;

/// What callers and services ask of the session, in order. Bounded: whoever asks waits.
#[derive(Debug)]
pub(super) enum Command {
    Call { number: u64, target: PeerId, request: Box<Request>, deadline: Option<Instant>, sender: Parts },
    Answer { serving: ServingId, message: Option<Bytes>, end: Option<End> },
}

/// What must not wait. Bounded by the open calls: at most two credits and one end for each.
#[derive(Debug)]
pub(super) enum Note {
    Credit { number: u64, bytes: u64 },
    StopWaiting { number: u64 },
    ServiceLost { serving: ServingId },
    Drain { reason: String },
    Close,
}

/// The way to the session.
#[derive(Debug, Clone)]
pub(super) struct Inbox {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) notes: mpsc::UnboundedSender<Note>,
}

/// What ends the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    Drain,
    Close,
}

pub(super) struct Driver {
    session: Session,
    settings: PeerSettings,
    dialers: Arc<[Box<dyn Dialer>]>,
    services: HashMap<ServiceName, Arc<dyn Service>>,
    /// Waits after attempts that led to no session.
    backoff: Backoff,
    /// Waits after sessions. Apart from the others: an unreachable hub must not delay the replacement of a link that is cut later.
    reopening: Backoff,
    inbox: Inbox,
    commands: mpsc::Receiver<Command>,
    notes: mpsc::UnboundedReceiver<Note>,
    state: watch::Sender<PeerState>,
    calls: ByCount<u64, Parts>,
    gates: ByCount<ServingId, Arc<Gate>>,
    /// What services do. Polled by this task, which has to run for each of them anyway, to read its request and to send its answer.
    answers: FuturesUnordered<BoxFuture<'static, ()>>,
    pump: Option<Pump>,
    /// Index of the dialer that made the link.
    dialled: usize,
    closed: Option<CloseReason>,
    ending: Ending,
    /// When a drain that was asked for must be done.
    drain_by: Option<Instant>,
    /// Attempts to connect since the last connection.
    attempts: u64,
    /// A link is being replaced by one over a better road; until that is in use, callers wait.
    switching: bool,
    /// How often in a row a better road did not hold what it promised.
    disappointments: u32,
}

impl Driver {
    pub(super) fn new(
        hello: Hello,
        dialers: Vec<Box<dyn Dialer>>,
        services: HashMap<ServiceName, Arc<dyn Service>>,
        settings: PeerSettings,
        backoff: Backoff,
    ) -> (Self, Inbox, watch::Receiver<PeerState>) {
        let (command_sender, commands) = mpsc::channel(COMMANDS);
        let (note_sender, notes) = mpsc::unbounded_channel();
        let inbox = Inbox { commands: command_sender, notes: note_sender };
        let (state, state_receiver) = watch::channel(PeerState::Connecting { attempts: 0, last_error: None });
        let driver = Self {
            session: Session::new(hello, settings.session.clone()),
            settings,
            dialers: dialers.into(),
            services,
            reopening: backoff.clone(),
            backoff,
            inbox: inbox.clone(),
            commands,
            notes,
            state,
            calls: ByCount::default(),
            gates: ByCount::default(),
            answers: FuturesUnordered::new(),
            pump: None,
            dialled: 0,
            closed: None,
            ending: Ending::No,
            drain_by: None,
            attempts: 0,
            switching: false,
            disappointments: 0,
        };
        (driver, inbox, state_receiver)
    }

    pub(super) async fn run(mut self) {
        // After a blip the address that worked is the best guess.
        let mut best = None;
        let mut better = None;
        while self.ending == Ending::No {
            let mut was_open = false;
            let dialled = match better.take() {
                Some(road) => Some(road),
                None => self.dial(best.take()).await,
            };
            if let Some(Road { index, link }) = dialled {
                self.dialled = index;
                let Ended { opened, next } = self.connection(link).await;
                better = next;
                if let Some(opened) = opened {
                    was_open = true;
                    best = Some(index);
                    self.judge_road(now().saturating_duration_since(opened), better.is_some());
                }
            }
            if self.ending == Ending::No && better.is_none() {
                let backoff = if was_open { &mut self.reopening } else { &mut self.backoff };
                let wait = backoff.next_wait();
                self.offline(tokio::time::sleep(wait)).await;
            }
        }
        self.stop();
    }

    /// A link was in use for so long, and was then lost, or left for a better one.
    fn judge_road(&mut self, held: Duration, left: bool) {
        self.backoff.reset();
        if held >= AT_ONCE {
            self.reopening.reset();
        }
        if !left && held >= self.settings.better_road_every {
            self.disappointments = 0;
        }
    }

    fn connecting(&self, error: String) {
        self.state.send_replace(PeerState::Connecting { attempts: self.attempts, last_error: Some(error) });
    }

    /// Does something else while there is no link; `None` if the peer is to end meanwhile.
    async fn offline<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.poll_services(cx);
            while self.poll_inbox(cx).is_ready() {}
            if self.ending == Ending::No { work.as_mut().poll(cx).map(Some) } else { Poll::Ready(None) }
        })
        .await
    }

    /// A link over the first road that can be had: the one that worked last, then the others in their order.
    async fn dial(&mut self, best: Option<usize>) -> Option<Road> {
        let others = (0..self.dialers.len()).filter(|index| Some(*index) != best);
        let (order, attempts) = (best.into_iter().chain(others).collect(), Arc::new(AtomicU64::new(0)));
        let bound = self.settings.dial_timeout;
        let dialling = dialling(Arc::clone(&self.dialers), order, bound, Arc::clone(&attempts));
        let dialled = self.offline(dialling).await;
        self.attempts += attempts.load(Ordering::Relaxed);
        match dialled? {
            Ok(road) => Some(road),
            Err(error) => {
                self.connecting(error);
                None
            }
        }
    }

    /// What services have to say comes as commands.
    fn poll_services(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = self.answers.poll_next_unpin(cx) {}
    }

    /// What services still do ends in a task of its own.
    fn leave_services(&mut self) {
        let rest = std::mem::take(&mut self.answers);
        if !rest.is_empty() {
            tokio::spawn(rest.for_each(|()| std::future::ready(())));
        }
    }

    /// Takes one command or note. Ready if there was one.
    fn poll_inbox(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_command(cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_note(cx)
    }

    fn poll_command(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Poll::Ready(Some(command)) = self.commands.poll_recv(cx) else { return Poll::Pending };
        self.command(command);
        Poll::Ready(())
    }

    fn poll_note(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Poll::Ready(Some(note)) = self.notes.poll_recv(cx) else { return Poll::Pending };
        self.note(note);
        Poll::Ready(())
    }

    fn command(&mut self, command: Command) {
        match command {
            // The word of that may have come before the call: commands wait where notes do not.
            Command::Call { sender, .. } if sender.is_closed() => {}
            Command::Call { number, target, request, deadline, sender } => {
                self.calls.insert(number, sender);
                self.handle(Event::Call { number, target, request: *request, deadline });
            }
            Command::Answer { serving, message, end } => self.answer(serving, message, end),
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Credit { number, bytes } => self.handle(Event::Credit { number, bytes }),
            Note::StopWaiting { number } => {
                if self.calls.remove(&number).is_some() {
                    self.handle(Event::StopWaiting { number });
                }
            }
            Note::ServiceLost { serving } => {
                let failure = Failure::new(Reason::ServiceLost, "the service ended without an answer");
                self.answer(serving, None, Some(End::Failed(failure)));
            }
            Note::Drain { reason } => {
                self.ending = Ending::Drain;
                self.drain_by = Some(now() + self.settings.session.drain_timeout);
                if self.pump.is_some() {
                    self.state.send_replace(PeerState::Draining { reason: reason.clone() });
                    self.handle(Event::Drain { reason });
                }
            }
            Note::Close => {
                self.ending = Ending::Close;
                self.drain_by = None;
                self.handle(Event::Close);
            }
        }
    }

    fn answer(&mut self, serving: ServingId, message: Option<Bytes>, end: Option<End>) {
        if end.is_some() {
            self.gates.remove(&serving);
        }
        self.handle(Event::Answer { serving, message, end });
    }

    fn handle(&mut self, event: Event) {
        self.session.handle(event, now());
        while let Some(action) = self.session.poll_action() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(frame) => {
                if let Some(pump) = &mut self.pump {
                    pump.push(frame);
                }
            }
            Action::Reply { number, message, end } => {
                // Whether the caller is still there is not asked: the note that it has left comes.
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
            Action::Credit { serving, bytes } => {
                if let Some(gate) = self.gates.get(&serving) {
                    gate.give(bytes);
                }
            }
            Action::Abandoned { serving } => {
                if let Some(gate) = self.gates.remove(&serving) {
                    gate.close();
                }
            }
            Action::Opened(remote) => {
                let Some(pump) = &self.pump else { return };
                self.attempts = 0;
                self.switching = false;
                let address = self.dialers[self.dialled].address().to_owned();
                let kind = pump.link().kind();
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
                self.state.send_replace(PeerState::Draining { reason });
            }
            Action::Close(reason) => self.closed = Some(reason),
        }
    }

    fn serve(&mut self, incoming: Incoming) {
        let Incoming { serving, source, request } = incoming;
        // The session lets only those services through that this peer has named.
        let Some(service) = self.services.get(&request.service).map(Arc::clone) else { return };
        let gate = Arc::new(Gate::new(request.credit));
        self.gates.insert(serving, Arc::clone(&gate));
        let replies = ReplySender::new(serving, gate, self.inbox.clone());
        tracing::debug!(%source, service = %request.service, "call");
        let answer = async move { service.call(source, request, replies).await };
        // A call that panics is dropped, which tells its caller. The others continue.
        self.answers.push(AssertUnwindSafe(answer).catch_unwind().map(drop).boxed());
    }

    /// Ends everything that still waits for this peer.
    fn stop(mut self) {
        self.leave_services();
        self.handle(Event::LinkLost);
        self.commands.close();
        self.notes.close();
        for gate in self.gates.values() {
            gate.close();
        }
        // A call whose sender is dropped here finds its end by that.
        while self.commands.try_recv().is_ok() {}
        self.calls.clear();
        self.state.send_replace(PeerState::Closed);
    }
}
