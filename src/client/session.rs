//! A session: calls that are made at the same time leave in one message, and their answers come in one.
//!
//! A client with several calls in flight sends them over one ([`shared`]), because each call of its own is a request of
//! HTTP/2, which costs client and server more than what it asks for.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender as MessageSender, unbounded};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tonic::{Response, Status, Streaming};

use super::error::Failed;
use crate::api::proto::session_command::{Acquire, Cancel, Command};
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{CommandResult, Event};
use crate::api::proto::{
    AcquireResponse, ReleaseRequest, SessionCommand, SessionEvent, SessionRequest, SessionResponse,
};

pub(super) mod shared;

/// How many commands leave in one message at most.
const TOGETHER: usize = 200;
/// How many bytes of commands leave in one message, unless one alone has more. No server accepts less than 16 KiB.
const MESSAGE_BYTES: usize = 12 << 10;

/// The messages of a session, as they are opened.
pub(super) type Messages = futures::channel::mpsc::UnboundedReceiver<SessionRequest>;

/// A session on one connection. Clones share it, and the last one ends it.
#[derive(Debug, Clone)]
pub(super) struct Session {
    calls: mpsc::UnboundedSender<SentCommand>,
    shared: Arc<State>,
    /// How many commands the server accepts at once.
    pub command_limit: u32,
}

/// What the clones of a session share.
#[derive(Debug)]
struct State {
    address: String,
    last_id: AtomicU64,
    in_flight: AtomicUsize,
    /// The locks with an Acquire in flight that does not wait, by their hashes.
    tries: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

/// Why a command has no outcome.
#[derive(Debug, Clone)]
pub(super) enum CommandFailure {
    /// The server's error.
    Answered(Failed),
    /// The session ended, or did not answer in time. The command may have been executed.
    Unanswered(Failed),
}

/// A command on its way, and the caller that waits for its outcome.
#[derive(Debug)]
enum SentCommand {
    Call {
        id: u64,
        command: Command,
        caller: Caller,
        place: Option<Place>,
    },
    /// Its caller has gone.
    Abandoned {
        id: u64,
        /// Whether a lease that is granted all the same is released.
        releases: bool,
    },
}

type Caller = oneshot::Sender<Result<Outcome, CommandFailure>>;

/// A command in flight.
#[derive(Debug)]
struct InFlight {
    awaited: Awaited,
    _place: Option<Place>,
}

#[derive(Debug)]
enum Awaited {
    By(Caller),
    /// Its caller has gone; a lease that it is granted is released.
    ReleasedWhenGranted,
}

/// A place for a command, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<State>,
    tries: Option<u64>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(lock) = self.tries {
            self.shared.tries.lock().remove(&lock);
        }
    }
}

/// Tells that the caller of an Acquire has gone.
struct AbandonOnDrop<'a> {
    session: &'a Session,
    id: Option<u64>,
    releases: bool,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let releases = self.releases;
            // It fails only if the session has ended.
            let _ = self.session.calls.send(SentCommand::Abandoned { id, releases });
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
        let shared = State {
            address: address.clone(),
            last_id: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            tries: Mutex::default(),
            hasher: RandomState::new(),
        };
        let task = SessionTask {
            calls,
            commands,
            events,
            in_flight: HashMap::new(),
            last_cleanup: 0,
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

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.calls.is_closed()
    }

    /// A place for this command. None if as many are in flight as the server accepts, and for an Acquire that does not wait
    /// behind another one of its lock: a session would execute them one after the other.
    pub fn place(&self, command: &Command) -> Option<Place> {
        let shared = &self.shared;
        let tries = match command {
            Command::Acquire(Acquire { request: Some(ask), .. }) if ask.wait.is_none() => {
                Some(shared.hasher.hash_one((&ask.namespace, &ask.name)))
            }
            _ => None,
        };
        if tries.is_some_and(|lock| !shared.tries.lock().insert(lock)) {
            return None;
        }
        let in_flight = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let place = Place {
            shared: Arc::clone(shared),
            tries,
        };
        (in_flight < self.command_limit as usize).then_some(place)
    }

    /// Sends a command and waits for its outcome, for `limit` if there is one. It keeps its place until the server has
    /// answered. With `releases_late`, a lease that is granted after the returned future was dropped is released.
    ///
    /// # Cancellation safety
    /// If dropped, the wait of an Acquire is cancelled.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub async fn call(
        &self,
        command: Command,
        place: Option<Place>,
        limit: Option<Duration>,
        releases_late: bool,
    ) -> Result<Outcome, CommandFailure> {
        let (caller, outcome) = oneshot::channel();
        let id = self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut abandon = AbandonOnDrop {
            session: self,
            id: matches!(command, Command::Acquire(_)).then_some(id),
            releases: releases_late,
        };
        // It fails only if the session has ended, which the lost sender of the outcome shows.
        let _ = self.calls.send(SentCommand::Call {
            id,
            command,
            caller,
            place,
        });
        let outcome = match limit {
            Some(limit) => timeout(limit, outcome).await,
            None => Ok(outcome.await),
        };
        let Ok(outcome) = outcome else {
            // A repetition may find the lease of this command.
            abandon.releases = false;
            let problem = format!("no response within {:.1} s", limit.unwrap_or_default().as_secs_f64());
            return Err(CommandFailure::Unanswered(Failed::no_response(
                &self.shared.address,
                problem,
            )));
        };
        abandon.id = None;
        let ended = || Failed::no_response(&self.shared.address, "the session ended");
        outcome.unwrap_or_else(|_| Err(CommandFailure::Unanswered(ended())))
    }
}

/// Sends the commands of a session and passes the outcomes on.
struct SessionTask {
    calls: mpsc::UnboundedReceiver<SentCommand>,
    commands: MessageSender<SessionRequest>,
    events: Streaming<SessionResponse>,
    in_flight: HashMap<u64, InFlight>,
    /// The number of Cancel and Release commands of its own. Their ids count down from the largest.
    last_cleanup: u64,
    idle: Option<Duration>,
    address: String,
}

impl SessionTask {
    async fn run(mut self) {
        let mut together = Vec::with_capacity(TOGETHER);
        let failed = loop {
            let idle = self.idle.filter(|_| self.in_flight.is_empty());
            tokio::select! {
                called = self.calls.recv_many(&mut together, TOGETHER) => {
                    if called == 0 {
                        return;
                    }
                    // Callers that were woken together call together.
                    yield_now().await;
                    while together.len() < TOGETHER && let Ok(call) = self.calls.try_recv() {
                        together.push(call);
                    }
                    self.send(&mut together);
                }
                message = self.events.message() => match message {
                    Ok(Some(message)) => self.pass_on(message),
                    Ok(None) => break Failed::no_response(&self.address, "the session ended"),
                    Err(status) => break Failed::of(&status, &self.address),
                },
                () = sleep(idle.unwrap_or_default()), if idle.is_some() => return,
            }
        };
        for (_, in_flight) in self.in_flight.drain() {
            if let Awaited::By(caller) = in_flight.awaited {
                // It fails only for a caller that has gone.
                let _ = caller.send(Err(CommandFailure::Unanswered(failed.clone())));
            }
        }
    }

    fn send(&mut self, together: &mut Vec<SentCommand>) {
        let (mut commands, mut bytes) = (Vec::with_capacity(together.len()), 0);
        for sent in together.drain(..) {
            let (id, command) = match sent {
                SentCommand::Call {
                    id,
                    command,
                    caller,
                    place,
                } => {
                    let awaited = Awaited::By(caller);
                    self.in_flight.insert(id, InFlight { awaited, _place: place });
                    (id, command)
                }
                SentCommand::Abandoned { id, releases } => {
                    // It has its outcome if it is not in flight.
                    let Some(in_flight) = self.in_flight.get_mut(&id) else {
                        continue;
                    };
                    if releases {
                        in_flight.awaited = Awaited::ReleasedWhenGranted;
                    }
                    (self.cleanup_id(), Command::Cancel(Cancel { id }))
                }
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

    fn cleanup_id(&mut self) -> u64 {
        self.last_cleanup += 1;
        u64::MAX - self.last_cleanup
    }

    fn pass_on(&mut self, message: SessionResponse) {
        for SessionEvent { event } in message.events {
            let Some(Event::Result(CommandResult { id, outcome })) = event else {
                continue;
            };
            match self.in_flight.remove(&id).map(|in_flight| in_flight.awaited) {
                Some(Awaited::By(caller)) => {
                    // It fails only for a caller that has gone.
                    let _ = caller.send(answered(outcome));
                }
                Some(Awaited::ReleasedWhenGranted) => self.release(outcome),
                None => {}
            }
        }
    }

    /// Releases the lease that nobody waits for.
    fn release(&mut self, outcome: Option<Outcome>) {
        if let Some(Outcome::Acquire(AcquireResponse { lease: Some(lease) })) = outcome {
            let lease_id = lease.lease_id;
            let command = Some(Command::Release(ReleaseRequest { lease_id }));
            let id = self.cleanup_id();
            self.send_message(vec![SessionCommand { id, command }]);
        }
    }
}

fn answered(outcome: Option<Outcome>) -> Result<Outcome, CommandFailure> {
    match outcome {
        Some(Outcome::Error(error)) => Err(CommandFailure::Answered(Failed::of_command(&error))),
        Some(outcome) => Ok(outcome),
        None => Err(CommandFailure::Answered(Failed::incomplete())),
    }
}
