//! Executes the commands of a session.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message as _;
use tokio::task::{unconstrained, yield_now};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::command_call::{AtEnd, CommandCall, Finished};
use super::events::{Answer, event, failed, result};
use super::{COMMANDS, MESSAGE_COMMANDS, Phase, Session, Wait};
use crate::api::access::GuardedNamespaces;
use crate::api::authenticate::Caller;
use crate::api::lease_keeper::LeasePlace;
use crate::api::proto::session_command::{Acquire, Command};
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{Attached, Cancelled, Detached, Event, Kept};
use crate::api::proto::{AcquireRequest, SessionCommand, SessionRequest};
use crate::api::status;
use crate::error::Error;
use crate::locks::WaitControl;
use crate::name::{InvalidField, LeaseKey};
use crate::rpc::path;
use crate::session::{LockNumber, Order, Started};

impl Session {
    /// Executes the commands of a message under the rules of this moment.
    pub(super) async fn execute_all(&mut self, request: SessionRequest) -> Result<(), Status> {
        // Messages without pause leave other calls their turn.
        yield_now().await;
        if self.caller.policy.is_some() {
            let current = GuardedNamespaces::current(&self.caller).await.map_err(status::of)?;
            self.keeper.set_caller(current.clone());
            self.caller = Arc::new(current);
        }
        if request.commands.len() > MESSAGE_COMMANDS {
            let problem = format!("must be at most {MESSAGE_COMMANDS}, not {}", request.commands.len());
            return Err(status::of(InvalidField::new("commands", problem)));
        }
        for SessionCommand { id, command } in request.commands {
            self.execute(id, command)?;
        }
        Ok(())
    }

    /// # Errors
    /// When the id is that of a command in flight, which ends the stream.
    fn execute(&mut self, id: u64, command: Option<Command>) -> Result<(), Status> {
        match self.check(id, command) {
            Ok(Command::Cancel(cancel)) => {
                self.cancel(cancel.id);
                self.answer(id, Outcome::Cancel(Cancelled {}));
            }
            Ok(Command::Attach(attach)) => {
                let attached = self.attach(attach.lease_ids);
                let attached = attached.map(|()| Answer::Other(Outcome::Attach(Attached {})));
                self.events.push(result(id, attached.map_err(status::of)));
            }
            Ok(Command::Detach(detach)) => {
                let keys = detach.lease_ids.iter().filter_map(|id| LeaseKey::parse(id).ok());
                keys.for_each(|key| self.keeper.detach(&key.secret));
                self.answer(id, Outcome::Detach(Detached {}));
            }
            Ok(Command::KeepAlive(_)) => self.next_beats.push(id),
            Ok(Command::Close(close)) => self.stop(Phase::Closing {
                id,
                releases: close.release_leases,
            }),
            Ok(command) => self.add(id, command),
            Err(Refused::Command(error)) => {
                // It may have been a keep_alive, for which the client then waits to be asked.
                self.keeper.refused();
                self.events.push(failed(id, error));
            }
            Err(Refused::Stream(error)) => return Err(status::of(error)),
        }
        Ok(())
    }

    /// Checks that a command may be executed.
    fn check(&self, id: u64, command: Option<Command>) -> Result<Command, Refused> {
        let is_of_beat = self.beats.contains(&id) || self.next_beats.contains(&id);
        let is_of_close = matches!(self.phase, Phase::Closing { id: close, .. } if close == id);
        if self.commands.contains(id) || is_of_beat || is_of_close {
            let problem = format!("{id} is the id of a command that has no result yet");
            return Err(Refused::Stream(InvalidField::new("id", problem).into()));
        }
        if self.phase != Phase::Open {
            let problem = "must not follow a close";
            return Err(Refused::Command(InvalidField::new("command", problem).into()));
        }
        if self.is_unread() {
            return Err(Refused::Command(self.not_read()));
        }
        let Some(command) = command else {
            return Err(Refused::Command(
                InvalidField::new("command", "must be one of the commands").into(),
            ));
        };
        let in_flight = self.commands.len() + self.beats();
        if in_flight_limit(&command).is_some_and(|limit| in_flight >= limit) {
            let what = format!("{in_flight} commands of this session are in flight");
            return Err(Refused::Command(Error::Overloaded { what }));
        }
        Ok(command)
    }

    /// Whether the client has not read so much that commands are refused.
    fn is_unread(&self) -> bool {
        self.outbox.unread() >= self.unread_limit
    }

    /// Attaches leases, all or none.
    fn attach(&mut self, lease_ids: Vec<String>) -> Result<(), Error> {
        let mut leases = Vec::with_capacity(lease_ids.len());
        for lease_id in lease_ids {
            let key = LeaseKey::parse(&lease_id)?;
            if self.keeper.is_attached(&key.secret) {
                continue;
            }
            self.keeper.check(&key)?;
            leases.push((key, self.place(lease_id.len(), false)?));
        }
        for (key, place) in leases {
            self.keeper.attach(key, None, place);
        }
        Ok(())
    }

    /// A place for a lease to attach whose id has so many bytes, maybe after a wait.
    fn place(&self, id_bytes: usize, waits: bool) -> Result<LeasePlace, Error> {
        let of_session = self.places.take(id_bytes)?;
        let permits = &self.context.permits;
        let wait = waits.then(|| permits.wait_to_keep(&self.caller)).transpose()?;
        let of_server = permits.keep(1, &self.caller)?;
        Ok(LeasePlace::new(of_session, of_server, wait))
    }

    /// Begins one beat for all keep_alives that have arrived. Their client counts from the sending of each, which was
    /// earlier.
    pub(super) fn begin_beat(&mut self) {
        if !self.beats.is_empty() || self.next_beats.is_empty() {
            return;
        }
        let beats = std::mem::take(&mut self.next_beats);
        if self.is_unread() {
            self.keeper.refused();
            let refused = beats.into_iter().map(|id| failed(id, self.not_read()));
            self.events.extend(refused.collect::<Vec<_>>());
            return;
        }
        let first = beats.first().copied().unwrap_or_default();
        self.beats = beats;
        self.keeper.begin_attached(first);
        self.take_messages();
    }

    /// Answers the keep_alives of a beat. The first answer tells the new TTLs. Each may be large: those beyond the limit of
    /// unread bytes get OVERLOADED, except the first.
    pub(super) fn tell_kept(&mut self, mut kept: Kept) {
        let beats = std::mem::take(&mut self.beats);
        for (at, id) in beats.into_iter().enumerate() {
            if at > 0 && self.outbox.unread() + self.large_bytes >= self.unread_limit {
                self.events.push(failed(id, self.not_read()));
                continue;
            }
            self.large_bytes += kept.encoded_len();
            let told = Kept { id, ..kept.clone() };
            self.events.push(event(Event::Kept(told)).into());
            kept.new_ttls.clear();
        }
    }

    /// Adds a command that calls.
    fn add(&mut self, id: u64, command: Command) {
        let order = match &command {
            Command::Acquire(acquire) => {
                let request = acquire.request.as_ref();
                if let Some(wait) = request.and_then(|request| request.wait) {
                    self.waits.insert(id, Wait::of(wait));
                }
                let names = request.map(|request| (request.namespace.as_str(), request.name.as_str()));
                Order::Acquire(self.number(names.unwrap_or_default()))
            }
            Command::Renew(renew) => Order::After(self.number_of_lease(&renew.lease_id)),
            Command::Release(release) => {
                let lock = self.number_of_lease(&release.lease_id);
                if let Ok(key) = LeaseKey::parse(&release.lease_id) {
                    self.keeper.detach(&key.secret);
                }
                Order::After(lock)
            }
            Command::GetLock(get) => Order::After(self.number((get.namespace.as_str(), get.name.as_str()))),
            Command::CheckToken(check) => Order::After(self.number((check.namespace.as_str(), check.name.as_str()))),
            _ => return,
        };
        let started = self.commands.add(id, order, command);
        if started.is_none() {
            let end = self.waits.get(&id).and_then(|wait| wait.end);
            self.held_up_until.extend(end.map(|end| (end, id)));
        }
        self.start_all(started);
    }

    /// Removes the wait of an Acquire that has its result.
    pub(super) fn forget_wait(&mut self, id: u64) {
        if let Some(end) = self.waits.remove(&id).and_then(|wait| wait.end) {
            self.held_up_until.remove(&(end, id));
        }
    }

    /// Ends the waits of Acquires that have not started, because commands before them on their locks are still under way.
    pub(super) fn end_waits(&mut self) {
        while let Some((end, id)) = self.held_up_until.first().copied()
            && end <= Instant::now()
        {
            self.held_up_until.pop_first();
            self.end_held_up(id);
        }
    }

    /// Ends an Acquire that has not started. Its call has all that is around it, and is not sent to the store, because it
    /// must not pass the commands before it.
    pub(super) fn end_held_up(&mut self, id: u64) {
        // Nothing if it has started meanwhile: its call ends its wait.
        if let Some((Command::Acquire(acquire), next)) = self.commands.take(id) {
            self.start_acquire(id, acquire, true);
            self.start_all(next);
        }
    }

    fn number(&self, lock: (&str, &str)) -> LockNumber {
        self.hasher.hash_one(lock)
    }

    /// The number of a lease's lock. Ids that are none have a number too: their commands fail.
    fn number_of_lease(&self, lease_id: &str) -> LockNumber {
        match LeaseKey::parse(lease_id) {
            Ok(key) => self.number((key.lock.namespace.as_str(), key.lock.name.as_str())),
            Err(_) => self.number(("", "")),
        }
    }

    pub(super) fn start_all(&mut self, commands: impl IntoIterator<Item = Started<Command>>) {
        for Started { id, command } in commands {
            self.start(id, command);
        }
    }

    fn start(&mut self, id: u64, command: Command) {
        let (context, caller) = (Arc::clone(&self.context), Arc::clone(&self.caller));
        let mut at_end = AtEnd::Nothing;
        let (path, call): (_, BoxFuture<'static, Result<Outcome, Error>>) = match command {
            Command::Acquire(acquire) => return self.start_acquire(id, acquire, false),
            Command::Renew(renew) => {
                if let Ok(key) = LeaseKey::parse(&renew.lease_id) {
                    self.keeper.renew_begins(&key.secret);
                    at_end = AtEnd::Renewed(key.secret, Instant::now());
                }
                let call = async move { context.calls.renew(&caller, renew).await.map(Outcome::Renew) };
                (path::RENEW, call.boxed())
            }
            Command::Release(release) => {
                let call = async move { context.calls.release(&caller, release).await.map(Outcome::Release) };
                (path::RELEASE, call.boxed())
            }
            Command::GetLock(get) => {
                let call = async move { context.calls.get_lock(&caller, get).await.map(Outcome::GetLock) };
                (path::GET_LOCK, call.boxed())
            }
            Command::CheckToken(check) => {
                let call = async move { context.calls.check_token(&caller, check).await.map(Outcome::CheckToken) };
                (path::CHECK_TOKEN, call.boxed())
            }
            _ => return,
        };
        let call = async move { call.await.map(Answer::Other).map_err(status::of) };
        self.run_call((id, path), at_end, call);
    }

    /// Starts an Acquire, maybe one whose wait is over.
    fn start_acquire(&mut self, id: u64, acquire: Acquire, is_over: bool) {
        let Acquire { request, keep } = acquire;
        let wait = self.waits.get(&id).cloned();
        let id_bytes = |request: &AcquireRequest| LeaseKey::id_bytes(&request.namespace, &request.name);
        let place = || self.place(request.as_ref().map_or(0, id_bytes), wait.is_some());
        let place = keep.then(place).transpose();
        let (refused, at_end) = match place {
            Ok(Some(place)) => (None, AtEnd::Attach(place)),
            Ok(None) => (None, AtEnd::Nothing),
            Err(error) => (Some(error), AtEnd::Nothing),
        };
        let control = wait.clone().map(|Wait { arrived, cancelled, .. }| WaitControl {
            number: id,
            arrived,
            in_effect: self.in_effect.0.clone(),
            cancelled: if is_over { ended() } else { cancelled },
        });
        let (context, caller) = (Arc::clone(&self.context), Arc::clone(&self.caller));
        let call = async move {
            if let Some(error) = refused {
                return Err(error);
            }
            let caller = Caller::clone(&caller);
            let (mut namespace, acquire) = context.calls.to_acquire(caller, None, request.unwrap_or_default())?;
            if acquire.wait.is_zero() {
                return namespace.try_acquire(acquire)?.boxed().await;
            }
            if let Some(control) = control {
                namespace = namespace.controlled(control);
            }
            namespace.wait_for(acquire)?.boxed().await
        };
        let call = async move {
            match call.await {
                Ok(granted) => Ok(Answer::Granted(Box::new(granted))),
                Err(Error::WaitTimeout { .. }) if wait.is_some_and(|wait| wait.cancelled.is_cancelled()) => {
                    Err(status::wait_cancelled())
                }
                Err(error) => Err(status::of(error)),
            }
        };
        self.run_call((id, path::ACQUIRE), at_end, call);
    }

    fn run_call(
        &mut self,
        name: (u64, &'static str),
        at_end: AtEnd,
        call: impl Future<Output = Result<Answer, Status>> + Send + 'static,
    ) {
        // With the cooperative budget of the session's task, a command could be delayed and overtaken by later ones.
        let call = Box::pin(unconstrained(call));
        let call = CommandCall::begin(&self.around, &self.caller, name, at_end, call);
        self.running.push(call);
    }

    pub(super) fn took_effect(&mut self, id: u64) {
        let next = self.commands.took_effect(id);
        self.start_all(next);
    }

    pub(super) fn finished(&mut self, finished: Finished) {
        let Finished { id, answer, at_end } = finished;
        self.forget_wait(id);
        match (at_end, &answer) {
            (AtEnd::Attach(place), Ok(Answer::Granted(granted))) => {
                let lease = granted.lease();
                self.keeper.attach(lease.key.clone(), Some(lease.ttl), place.held());
            }
            (AtEnd::Renewed(secret, sent), answer) => self.keeper.renew_ended(&secret, renewed_ttl(answer), sent),
            _ => {}
        }
        let answer = self.within_limit(answer);
        self.events.push(result(id, answer));
        let next = self.commands.ended(id);
        self.start_all(next);
    }

    /// The answer, or OVERLOADED for the state of a lock while the client does not read: one may be as large as hundreds
    /// of other answers.
    fn within_limit(&mut self, answer: Result<Answer, Status>) -> Result<Answer, Status> {
        let Ok(Answer::Other(Outcome::GetLock(shown))) = &answer else {
            return answer;
        };
        if self.outbox.unread() + self.large_bytes >= self.unread_limit {
            return Err(status::of(self.not_read()));
        }
        self.large_bytes += shown.encoded_len();
        answer
    }

    /// The error of a command while the client does not read.
    fn not_read(&self) -> Error {
        let what = format!("the client has not read {} bytes of this session", self.unread_limit);
        Error::Overloaded { what }
    }
}

impl Wait {
    /// A wait of this length, which begins now.
    fn of(wait: prost_types::Duration) -> Self {
        let arrived = Instant::now();
        let wait = Duration::try_from(wait).ok().filter(|wait| !wait.is_zero());
        Self {
            arrived,
            end: wait.and_then(|wait| arrived.checked_add(wait)),
            cancelled: CancellationToken::new(),
        }
    }
}

/// Ends a wait before it begins.
fn ended() -> CancellationToken {
    let ended = CancellationToken::new();
    ended.cancel();
    ended
}

/// Up to how many commands may be in flight when this one arrives. Those that end or keep leases have as many places more,
/// because waits must not hold them up; those that end at once have no limit.
fn in_flight_limit(command: &Command) -> Option<usize> {
    match command {
        Command::Acquire(_) | Command::GetLock(_) | Command::CheckToken(_) => Some(COMMANDS),
        Command::Renew(_) | Command::Release(_) | Command::KeepAlive(_) => Some(2 * COMMANDS),
        Command::Cancel(_) | Command::Attach(_) | Command::Detach(_) | Command::Close(_) => None,
    }
}

/// The TTL in the answer to a Renew.
fn renewed_ttl(answer: &Result<Answer, Status>) -> Option<Duration> {
    match answer {
        Ok(Answer::Other(Outcome::Renew(renewed))) => renewed.lease.as_ref()?.ttl?.try_into().ok(),
        _ => None,
    }
}

/// Why a command is not executed.
enum Refused {
    /// It gets this result.
    Command(Error),
    /// The stream ends.
    Stream(Error),
}
