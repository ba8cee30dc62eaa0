//! A client of a session.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost::api::proto::session_command::{Acquire, Attach, Cancel, Close, Command, Detach, KeepAlive};
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::session_event::{CommandError, Event, Kept, Lost, Opened};
use fencepost::api::proto::{
    AcquireRequest, Lease, ReleaseRequest, RenewRequest, SessionCommand, SessionRequest, SessionResponse,
};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use prost::Message;
use tonic::{Status, Streaming};

/// Longer than anything takes that the server sends.
const PATIENCE: Duration = Duration::from_secs(30);

/// A session.
pub struct SessionClient {
    commands: Option<UnboundedSender<SessionRequest>>,
    events: Streaming<SessionResponse>,
    /// The events of the last message that were not looked at, and those that a search has passed.
    unseen: VecDeque<Event>,
    passed: Vec<Event>,
    last_id: u64,
    /// How many messages the server has sent.
    pub messages: usize,
    pub opened: Opened,
}

impl SessionClient {
    /// The commands of a session that is to be opened.
    pub fn commands() -> (UnboundedSender<SessionRequest>, UnboundedReceiver<SessionRequest>) {
        unbounded()
    }

    /// A session that was opened, once the server says so.
    pub async fn opened(
        commands: UnboundedSender<SessionRequest>,
        events: Streaming<SessionResponse>,
    ) -> Result<Self, Status> {
        let mut session = Self {
            commands: Some(commands),
            events,
            unseen: VecDeque::new(),
            passed: Vec::new(),
            last_id: 0,
            messages: 0,
            opened: Opened::default(),
        };
        match session.next().await? {
            Some(Event::Opened(opened)) => session.opened = opened,
            other => panic!("not opened: {other:?}"),
        }
        Ok(session)
    }

    /// Sends commands in one message, and returns their ids.
    pub fn send(&mut self, commands: Vec<Command>) -> Vec<u64> {
        let first = self.last_id + 1;
        self.last_id += commands.len() as u64;
        let ids: Vec<u64> = (first..=self.last_id).collect();
        let commands = ids.iter().copied().zip(commands);
        self.send_raw(commands.map(|(id, command)| (id, Some(command))).collect());
        ids
    }

    /// Sends commands under these ids in one message.
    pub fn send_raw(&mut self, commands: Vec<(u64, Option<Command>)>) {
        let commands = commands.into_iter().map(|(id, command)| SessionCommand { id, command });
        let request = SessionRequest {
            commands: commands.collect(),
        };
        let sender = self.commands.as_ref().expect("the client sends commands");
        sender.unbounded_send(request).expect("the stream is open");
    }

    /// Sends one command.
    pub fn one(&mut self, command: Command) -> u64 {
        self.send(vec![command])[0]
    }

    /// Sends no more commands.
    pub fn end_commands(&mut self) {
        self.commands = None;
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Event>, Status> {
        loop {
            if let Some(event) = self.unseen.pop_front() {
                return Ok(Some(event));
            }
            let message = tokio::time::timeout(PATIENCE, self.events.message()).await;
            let Some(message) = message.expect("an event in time")? else {
                return Ok(None);
            };
            self.messages += 1;
            let events = message.events.into_iter();
            self.unseen
                .extend(events.map(|event| event.event.expect("one of the events")));
        }
    }

    /// The first event that fits, before or after others, which later searches find.
    pub async fn find<T>(&mut self, fits: impl Fn(&Event) -> Option<T>) -> T {
        if let Some((at, found)) = self
            .passed
            .iter()
            .enumerate()
            .find_map(|(at, event)| Some((at, fits(event)?)))
        {
            self.passed.remove(at);
            return found;
        }
        loop {
            let event = self.next().await.expect("no error").expect("not the end");
            if let Some(found) = fits(&event) {
                return found;
            }
            self.passed.push(event);
        }
    }

    /// The result of a command; an error is as its call would have answered it.
    pub async fn result(&mut self, id: u64) -> Result<Outcome, Status> {
        let outcome = self.find(|event| match event {
            Event::Result(result) if result.id == id => result.outcome.clone(),
            _ => None,
        });
        match outcome.await {
            Outcome::Error(error) => Err(status(&error)),
            outcome => Ok(outcome),
        }
    }

    /// The results of commands in the order in which they arrive.
    pub async fn order_of_results(&mut self, results: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        while ids.len() < results {
            ids.push(
                self.find(|event| match event {
                    Event::Result(result) => Some(result.id),
                    _ => None,
                })
                .await,
            );
        }
        ids
    }

    /// Takes a lock, or says why not.
    pub async fn try_acquire(&mut self, request: AcquireRequest, keep: bool) -> Result<Lease, Status> {
        let id = self.one(acquire(request, keep));
        self.lease(id).await
    }

    /// The lease that a command was given.
    pub async fn lease(&mut self, id: u64) -> Result<Lease, Status> {
        match self.result(id).await? {
            Outcome::Acquire(answer) => Ok(answer.lease.expect("a lease")),
            Outcome::Renew(answer) => Ok(answer.lease.expect("a lease")),
            other => panic!("{other:?}"),
        }
    }

    /// Renews the attached leases.
    pub async fn keep_alive(&mut self) -> Kept {
        let id = self.one(Command::KeepAlive(KeepAlive {}));
        self.kept(id).await
    }

    /// The outcome of a keep_alive.
    pub async fn kept(&mut self, id: u64) -> Kept {
        self.find(|event| match event {
            Event::Kept(kept) if kept.id == id => Some(kept.clone()),
            _ => None,
        })
        .await
    }

    /// The next lost lease.
    pub async fn lost(&mut self) -> Lost {
        self.find(|event| match event {
            Event::Lost(lost) => Some(lost.clone()),
            _ => None,
        })
        .await
    }

    /// Returns when the server asks for a keep_alive.
    pub async fn asked(&mut self) {
        self.find(|event| matches!(event, Event::Ask(_)).then_some(())).await;
    }

    /// All events until the end of the stream, and its status if that is an error.
    pub async fn rest(&mut self) -> (Vec<Event>, Option<Status>) {
        let mut events = std::mem::take(&mut self.passed);
        loop {
            match self.next().await {
                Ok(Some(event)) => events.push(event),
                Ok(None) => return (events, None),
                Err(status) => return (events, Some(status)),
            }
        }
    }
}

/// The status that a call would have had: the details of an error are those of a google.rpc.Status. What a call has in
/// trailers, a result has in fields.
pub fn status(error: &CommandError) -> Status {
    let details = error.encode_to_vec().into();
    let mut status = Status::with_details(error.code.into(), error.message.clone(), details);
    for (key, value) in [("fencepost-reason", &error.reason), ("fencepost-cause", &error.cause)] {
        if !value.is_empty() {
            status.metadata_mut().insert(key, value.parse().expect("ASCII"));
        }
    }
    status
}

/// A command to take a lock.
pub fn acquire(request: AcquireRequest, keep: bool) -> Command {
    let request = Some(request);
    Command::Acquire(Acquire { request, keep })
}

/// A command to give a lease back.
pub fn release(lease: &Lease) -> Command {
    let lease_id = lease.lease_id.clone();
    Command::Release(ReleaseRequest {
        lease_id,
        keep_for: None,
    })
}

/// A command to renew a lease.
pub fn renew(lease: &Lease, ttl: Option<Duration>) -> Command {
    let lease_id = lease.lease_id.clone();
    let ttl = ttl.map(|ttl| ttl.try_into().expect("a short time"));
    Command::Renew(RenewRequest { lease_id, ttl })
}

/// A command to attach leases.
pub fn attach(lease_ids: &[&str]) -> Command {
    let lease_ids = lease_ids.iter().map(ToString::to_string).collect();
    Command::Attach(Attach { lease_ids })
}

/// A command to detach a lease.
pub fn detach(lease: &Lease) -> Command {
    let lease_ids = vec![lease.lease_id.clone()];
    Command::Detach(Detach { lease_ids })
}

/// A command to end a wait.
pub fn cancel(id: u64) -> Command {
    Command::Cancel(Cancel { id, request: None })
}

/// A command to end the session.
pub fn close(release_leases: bool) -> Command {
    Command::Close(Close { release_leases })
}
