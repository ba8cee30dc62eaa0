//! A session: calls that are made at the same time leave in one message, and their answers come in one.
//!
//! A client with several calls in flight sends Acquires that wait and Releases over one ([`shared`]), because each call of its
//! own is a request of HTTP/2, which costs client and server more than what it asks for.
//!
//! A session is opened by a call that is made while another one is in flight, and ends when it was idle for 10 s. Two
//! cores spend half of the time of a pair of unary calls on HTTP/2. These stay unary calls: a lone call, because a
//! session would not make it faster; calls beyond the server's limit of commands in flight; calls that are too large
//! to be sent with others; Acquires that do not wait, because a session executes these one after the other; and all
//! for 30 s after a server refused a session.
//!
//! A session keeps the bearer token that it was opened with, so a call with a newer one opens another. A command
//! without an answer is repeated like a call whose connection broke. An Acquire whose caller goes is cancelled; a
//! lease that is granted all the same is released, but only if the client itself made the request id, because another
//! call may know any other id.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender as MessageSender, unbounded};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tonic::{Response, Status, Streaming};

use super::error::Failed;
use crate::clock;
use crate::proto::session_command::{Cancel, Command, KeepAlive};
use crate::proto::session_event::command_result::Outcome;
use crate::proto::session_event::{CommandResult, Event};
use crate::proto::{SessionCommand, SessionEvent, SessionRequest, SessionResponse};

pub(super) mod shared;

/// How many commands leave in one message at most.
const TOGETHER: usize = 200;
/// How many bytes of commands leave in one message, unless one alone has more. No server accepts less than 16 KiB.
const MESSAGE_BYTES: usize = 12 << 10;

/// Proxies cut a stream on which nothing came for 60 s, and all waits on it would lose their places.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// The messages of a session, as they are opened.
pub(super) type Messages = futures::channel::mpsc::UnboundedReceiver<SessionRequest>;

/// A session on one connection. Clones share it, and the last one ends it.
#[derive(Debug, Clone)]
pub(super) struct Session {
    calls: mpsc::UnboundedSender<SentCommand>,
    shared: Arc<SessionState>,
    /// How many commands the server accepts at once.
    pub command_limit: u32,
}

/// What the clones of a session share.
#[derive(Debug)]
struct SessionState {
    address: String,
    last_id: AtomicU64,
    in_flight: AtomicUsize,
}

/// Why a command has no outcome.
#[derive(Debug, Clone)]
pub(super) enum CommandFailure {
    /// The server's error.
    Answered(Failed),
    /// The session ended, or did not answer in time. The command may have been executed.
    Unanswered(Failed),
    /// The session had ended before.
    NotSent,
}

/// A command on its way, and the caller that waits for its outcome.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "few are abandoned")]
enum SentCommand {
    Call {
        id: u64,
        command: Command,
        caller: Caller,
        place: Option<Place>,
    },
    /// Nobody waits for this Acquire any more.
    Abandoned(u64),
}

/// What a command is answered.
type CommandOutcome = Result<Outcome, CommandFailure>;
type Caller = oneshot::Sender<CommandOutcome>;

/// A command in flight.
#[derive(Debug)]
struct InFlight {
    caller: Caller,
    _place: Option<Place>,
}

/// A place for a command, until this is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<SessionState>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The caller of a command. If it is dropped before its outcome, an Acquire is cancelled.
struct Waiting<'a> {
    session: &'a Session,
    id: u64,
    is_acquire: bool,
    outcome: oneshot::Receiver<CommandOutcome>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_acquire && !self.outcome.is_terminated() {
            // It fails only if the session has ended.
            let _ = self.session.calls.send(SentCommand::Abandoned(self.id));
        }
    }
}

impl Session {
    /// A session that the server opens, once it says so. It ends after `idle` without a command in flight. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// Why it ended at once.
    pub async fn open(
        opened: impl Future<Output = Result<Response<Streaming<SessionResponse>>, Status>>,
        commands: MessageSender<SessionRequest>,
        idle: Option<Duration>,
        address: &impl ToString,
    ) -> Result<Self, Failed> {
        let address = address.to_string();
        let failed = |status| Failed::of(&status, &address);
        let mut events = opened.await.map_err(failed)?.into_inner();
        let first = events.message().await.map_err(failed)?;
        let mut first = first.unwrap_or_default().events.into_iter();
        let Some(Event::Opened(opened)) = first.next().and_then(|event| event.event) else {
            return Err(Failed::incomplete());
        };
        let (sender, calls) = mpsc::unbounded_channel();
        let shared = SessionState {
            address: address.clone(),
            last_id: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
        };
        let task = SessionTask {
            calls,
            commands,
            events,
            in_flight: HashMap::new(),
            last_own: 0,
            is_draining: false,
            idle,
            address,
        };
        tokio::spawn(task.run());
        Ok(Self {
            calls: sender,
            shared: Arc::new(shared),
            command_limit: opened.command_limit,
        })
    }

    /// The stream of messages that a session is opened with, and its sender.
    pub fn messages() -> (MessageSender<SessionRequest>, Messages) {
        unbounded()
    }

    /// Whether it has ended, or takes no more commands.
    pub fn has_ended(&self) -> bool {
        self.calls.is_closed()
    }

    /// A place for this command. None if as many are in flight as the server accepts, and if it is too large to be sent with
    /// others.
    pub fn place(&self, command: &Command) -> Option<Place> {
        let length = match command {
            Command::Acquire(acquire) => acquire.encoded_len(),
            Command::Release(release) => release.encoded_len(),
            _ => return None,
        };
        if length > MESSAGE_BYTES / 2 {
            return None;
        }
        let in_flight = self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(&self.shared));
        (in_flight < self.command_limit as usize).then_some(place)
    }

    /// Sends a command and waits for its outcome, for `limit` if there is one. It keeps its place until the server has
    /// answered.
    ///
    /// # Cancellation safety
    /// If dropped, the wait of an Acquire is cancelled.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub async fn call(&self, command: Command, place: Option<Place>, limit: Option<Duration>) -> CommandOutcome {
        let (caller, outcome) = oneshot::channel();
        let id = self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let is_acquire = matches!(command, Command::Acquire(_));
        let call = SentCommand::Call {
            id,
            command,
            caller,
            place,
        };
        self.calls.send(call).map_err(|_| CommandFailure::NotSent)?;
        let mut waiting = Waiting {
            session: self,
            id,
            is_acquire,
            outcome,
        };
        let outcome = match limit {
            Some(limit) => timeout(limit, &mut waiting.outcome).await,
            None => Ok((&mut waiting.outcome).await),
        };
        let Ok(outcome) = outcome else {
            let problem = format!("no response within {:.1} s", limit.unwrap_or_default().as_secs_f64());
            return Err(CommandFailure::Unanswered(Failed::no_response(
                &self.shared.address,
                problem,
            )));
        };
        outcome.unwrap_or_else(|_| Err(CommandFailure::Unanswered(self.ended())))
    }

    /// The failure of a command after its end.
    pub fn ended(&self) -> Failed {
        Failed::no_response(&self.shared.address, "the session ended")
    }
}

/// Sends the commands of a session and passes the outcomes on.
struct SessionTask {
    calls: mpsc::UnboundedReceiver<SentCommand>,
    commands: MessageSender<SessionRequest>,
    events: Streaming<SessionResponse>,
    in_flight: HashMap<u64, InFlight>,
    /// The number of commands that no caller waits for. Their ids count down from the largest.
    last_own: u64,
    /// The server reads no more commands.
    is_draining: bool,
    idle: Option<Duration>,
    address: String,
}

impl SessionTask {
    async fn run(mut self) {
        let mut together = Vec::with_capacity(TOGETHER);
        let mut is_closed = false;
        let mut heard = clock::since_boot();
        let failed = loop {
            if is_closed && self.in_flight.is_empty() {
                return;
            }
            let idle = self.idle.filter(|_| self.in_flight.is_empty());
            tokio::select! {
                called = self.calls.recv_many(&mut together, TOGETHER), if !is_closed => {
                    is_closed = called == 0;
                    if !is_closed {
                        // Callers that were woken together call together.
                        yield_now().await;
                    }
                    while together.len() < TOGETHER && let Ok(call) = self.calls.try_recv() {
                        together.push(call);
                    }
                    self.send(&mut together);
                }
                message = self.events.message() => match message {
                    Ok(Some(message)) => {
                        heard = clock::since_boot();
                        self.pass_on(message);
                    }
                    Ok(None) => break Failed::no_response(&self.address, "the session ended"),
                    Err(status) => break Failed::of(&status, &self.address),
                },
                // What was sent meanwhile is still served.
                () = sleep(idle.unwrap_or_default()), if idle.is_some() => self.calls.close(),
                () = clock::sleep_until(heard + MAX_SILENCE), if !self.in_flight.is_empty() => {
                    heard = clock::since_boot();
                    self.ask_for_a_sign();
                }
            }
        };
        for (_, in_flight) in self.in_flight.drain() {
            // It fails only for a caller that has gone.
            let _ = in_flight.caller.send(Err(CommandFailure::Unanswered(failed.clone())));
        }
        self.calls.close();
        while let Ok(sent) = self.calls.try_recv() {
            refuse(sent);
        }
    }

    fn send(&mut self, together: &mut Vec<SentCommand>) {
        let (mut commands, mut bytes) = (Vec::with_capacity(together.len()), 0);
        for sent in together.drain(..) {
            let (id, command) = match sent {
                sent if self.is_draining => {
                    refuse(sent);
                    continue;
                }
                SentCommand::Call {
                    id,
                    command,
                    caller,
                    place,
                } => {
                    self.in_flight.insert(id, InFlight { caller, _place: place });
                    (id, command)
                }
                // It has its outcome.
                SentCommand::Abandoned(id) if !self.in_flight.contains_key(&id) => continue,
                SentCommand::Abandoned(id) => (self.own_id(), Command::Cancel(Cancel { id, request: None })),
            };
            let command = SessionCommand {
                id,
                command: Some(command),
            };
            let length = command.encoded_len();
            if bytes + length > MESSAGE_BYTES && bytes > 0 {
                self.send_message(std::mem::take(&mut commands));
                bytes = 0;
            }
            bytes += length;
            commands.push(command);
        }
        self.send_message(commands);
    }

    fn send_message(&self, commands: Vec<SessionCommand>) {
        if !commands.is_empty() {
            // It fails only if the stream has ended, which the next event shows.
            let _ = self.commands.unbounded_send(SessionRequest { commands });
        }
    }

    /// The server answers at once, because no lease is attached.
    fn ask_for_a_sign(&mut self) {
        let command = SessionCommand {
            id: self.own_id(),
            command: Some(Command::KeepAlive(KeepAlive {})),
        };
        self.send_message(vec![command]);
    }

    fn own_id(&mut self) -> u64 {
        self.last_own += 1;
        u64::MAX - self.last_own
    }

    fn pass_on(&mut self, message: SessionResponse) {
        for SessionEvent { event } in message.events {
            match event {
                Some(Event::Result(CommandResult { id, outcome })) => {
                    if let Some(in_flight) = self.in_flight.remove(&id) {
                        // It fails only for a caller that has gone.
                        let _ = in_flight.caller.send(answered(outcome));
                    }
                }
                Some(Event::Draining(_)) => {
                    self.is_draining = true;
                    self.calls.close();
                }
                _ => {}
            }
        }
    }
}

/// Tells the caller of a command that it was not sent.
fn refuse(sent: SentCommand) {
    if let SentCommand::Call { caller, .. } = sent {
        // It fails only for a caller that has gone.
        let _ = caller.send(Err(CommandFailure::NotSent));
    }
}

fn answered(outcome: Option<Outcome>) -> CommandOutcome {
    match outcome {
        Some(Outcome::Error(error)) => Err(CommandFailure::Answered(Failed::of_command(&error))),
        Some(outcome) => Ok(outcome),
        None => Err(CommandFailure::Answered(Failed::incomplete())),
    }
}
