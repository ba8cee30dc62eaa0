//! A session, for benchmarks: what its callers send at the same time leaves in one message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::channel::mpsc::UnboundedSender as MessageSender;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tonic::Streaming;

use crate::api::proto::session_command::{Acquire, Cancel, Command};
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{CommandError, CommandResult, Event};
use crate::api::proto::{
    AcquireRequest, Lease, ReleaseRequest, SessionCommand, SessionEvent, SessionRequest, SessionResponse,
};
use crate::client::Address;
use crate::client::calls::incomplete;
use crate::client::error::{Error, Failed};

/// How many commands leave in one message at most, so that it is as large as a server accepts.
const TOGETHER: usize = 200;

/// A session on one connection. Clones share it, and the last one ends it.
#[derive(Debug, Clone)]
pub struct RawSession {
    calls: mpsc::UnboundedSender<SentCommand>,
    last_id: Arc<AtomicU64>,
    address: Address,
    /// How many commands the server accepts at once.
    pub command_limit: u32,
}

/// A command on its way, and who waits for its outcome.
#[derive(Debug)]
struct SentCommand {
    id: u64,
    command: Command,
    outcome: Option<oneshot::Sender<Result<Outcome, Error>>>,
}

/// Sends the commands of a session and passes the results on.
#[derive(Debug)]
struct SessionTask {
    calls: mpsc::UnboundedReceiver<SentCommand>,
    commands: MessageSender<SessionRequest>,
    events: Streaming<SessionResponse>,
    in_flight: HashMap<u64, oneshot::Sender<Result<Outcome, Error>>>,
    address: Address,
}

/// Cancels a command that nobody waits for any more.
struct CancelOnDrop<'a> {
    session: &'a RawSession,
    id: Option<u64>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.send(Command::Cancel(Cancel { id }), None);
        }
    }
}

impl RawSession {
    /// A session that was opened, once the server says so. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Why it ended at once.
    pub(super) async fn opened(
        commands: MessageSender<SessionRequest>,
        mut events: Streaming<SessionResponse>,
        address: Address,
    ) -> Result<Self, Error> {
        let first = events.message().await;
        let first = first.map_err(|status| Failed::of(&status, &address).error)?;
        let mut first = first.unwrap_or_default().events.into_iter();
        let Some(Event::Opened(opened)) = first.next().and_then(|event| event.event) else {
            return Err(incomplete().error);
        };
        let (sender, calls) = mpsc::unbounded_channel();
        let task = SessionTask {
            calls,
            commands,
            events,
            in_flight: HashMap::new(),
            address: address.clone(),
        };
        tokio::spawn(task.run());
        Ok(Self {
            calls: sender,
            last_id: Arc::default(),
            address,
            command_limit: opened.command_limit,
        })
    }

    /// As [`super::Raw::acquire`].
    ///
    /// # Cancellation safety
    /// If dropped, a wait is cancelled. A grant that is on its way lives until its TTL.
    ///
    /// # Errors
    /// The server's error.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Lease, Error> {
        let acquire = Acquire {
            request: Some(request),
            keep: false,
        };
        match self.call(Command::Acquire(acquire)).await? {
            Outcome::Acquire(answer) => answer.lease.ok_or_else(|| incomplete().error),
            _ => Err(incomplete().error),
        }
    }

    /// As [`super::Raw::release`].
    ///
    /// # Errors
    /// The server's error.
    pub async fn release(&self, lease_id: String) -> Result<(), Error> {
        match self.call(Command::Release(ReleaseRequest { lease_id })).await? {
            Outcome::Release(_) => Ok(()),
            _ => Err(incomplete().error),
        }
    }

    async fn call(&self, command: Command) -> Result<Outcome, Error> {
        let (sender, outcome) = oneshot::channel();
        let mut cancel = CancelOnDrop {
            session: self,
            id: Some(self.send(command, Some(sender))),
        };
        let outcome = outcome.await;
        cancel.id = None;
        outcome.unwrap_or_else(|_| Err(ended(&self.address)))
    }

    /// Sends a command and returns its id.
    fn send(&self, command: Command, outcome: Option<oneshot::Sender<Result<Outcome, Error>>>) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        // It fails only if the session has ended, which the lost sender of the outcome shows.
        let _ = self.calls.send(SentCommand { id, command, outcome });
        id
    }
}

impl SessionTask {
    async fn run(mut self) {
        let mut together = Vec::with_capacity(TOGETHER);
        let error = loop {
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
                    Ok(None) => break ended(&self.address),
                    Err(status) => break Failed::of(&status, &self.address).error,
                },
            }
        };
        for (_, outcome) in self.in_flight.drain() {
            // It fails only for a caller that has gone.
            let _ = outcome.send(Err(error.clone()));
        }
    }

    fn send(&mut self, together: &mut Vec<SentCommand>) {
        let mut commands = Vec::with_capacity(together.len());
        for SentCommand { id, command, outcome } in together.drain(..) {
            self.in_flight.extend(outcome.map(|outcome| (id, outcome)));
            let command = Some(command);
            commands.push(SessionCommand { id, command });
        }
        // It fails only if the stream has ended, which the next event shows.
        let _ = self.commands.unbounded_send(SessionRequest { commands });
    }

    fn pass_on(&mut self, message: SessionResponse) {
        for SessionEvent { event } in message.events {
            if let Some(Event::Result(CommandResult { id, outcome })) = event
                && let Some(waiting) = self.in_flight.remove(&id)
            {
                let outcome = match outcome {
                    Some(Outcome::Error(error)) => Err(failed(&error)),
                    Some(outcome) => Ok(outcome),
                    None => Err(incomplete().error),
                };
                // It fails only for a caller that has gone.
                let _ = waiting.send(outcome);
            }
        }
    }
}

fn ended(address: &Address) -> Error {
    Failed::no_response(address, "the session ended").error
}

fn failed(error: &CommandError) -> Error {
    let cause = (!error.cause.is_empty()).then(|| ("cause".to_owned(), error.cause.clone()));
    Failed::of_reason(&error.reason, &cause.into_iter().collect(), &error.message).error
}
