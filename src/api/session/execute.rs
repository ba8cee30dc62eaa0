//! Executes the commands of a session.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use prost::Message as _;
use tokio::time::Instant;
use tonic::Status;

use super::adding::end_of;
use super::command_call::{AtEnd, Finished};
use super::events::{Answer, event, failed, result};
use super::start::LockCommand;
use super::watches::Watch;
use super::{COMMANDS, MESSAGE_COMMANDS, Phase, READY_TOGETHER, SESSION_ID_BYTES, Session, Wait};
use crate::api::access::GuardedNamespaces;
use crate::api::open_streams::ClientName;
use crate::api::proto::session_command::{Cancel, Command, Open, Proclaim};
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{Attached, Cancelled, Detached, Event, Kept, OpenAccepted};
use crate::api::proto::{ProclaimRequest, SessionCommand, SessionRequest};
use crate::api::stream_leases::LeasePlace;
use crate::api::{convert, status};
use crate::error::Error;
use crate::locks::{OUTAGE_TOLERANCE, SessionStream, WaitProgress};
use crate::name::{InvalidField, LeaseKey};
use crate::session::Started;

impl Session {
    /// Executes the commands of a message under the rules of this moment.
    pub(super) async fn execute_all(&mut self, request: SessionRequest) -> Result<(), Status> {
        if self.caller.policy.is_some() {
            let caller = Arc::clone(&self.caller);
            let mut current = pin!(GuardedNamespaces::current(&caller));
            let current = match current.as_mut().now_or_never() {
                Some(current) => current,
                None => {
                    // What is ready does not wait for a verification.
                    self.flush()?;
                    current.await
                }
            };
            let current = current.map_err(status::of)?;
            self.keeper.set_caller(current.clone());
            self.caller = Arc::new(current);
        }
        if request.commands.len() > MESSAGE_COMMANDS {
            let problem = format!("must be at most {MESSAGE_COMMANDS}, not {}", request.commands.len());
            return Err(status::of(InvalidField::new("commands", problem)));
        }
        for SessionCommand { id, command } in request.commands {
            self.execute(id, command)?;
            self.executed += 1;
            // The client reads these while the others run.
            if self.ready.len() >= READY_TOGETHER {
                self.finish_ready();
                self.pause().await?;
            }
        }
        Ok(())
    }

    /// # Errors
    /// When the id is that of a command in flight, which ends the stream.
    fn execute(&mut self, id: u64, command: Option<Command>) -> Result<(), Status> {
        let is_of_beat = self.beats.contains(&id) || self.next_beats.contains(&id);
        let is_of_close = matches!(self.phase, Phase::Closing { id: close, .. } if close == id);
        if self.commands.contains(id) || self.watches.contains(id) || is_of_beat || is_of_close {
            let problem = format!("{id} is the id of a command that has no result yet");
            return Err(status::of(InvalidField::new("id", problem)));
        }
        let command = self.check(command);
        self.is_first_command = self.is_first_command && matches!(command, Ok(Command::Open(_)));
        match command {
            Ok(Command::Cancel(Cancel { request: None, id: of })) => {
                self.cancel(of);
                self.answer(id, Outcome::Cancel(Cancelled {}));
            }
            Ok(Command::Cancel(Cancel {
                request: Some(request), ..
            })) => match self.state.session() {
                Some(session) => {
                    let session = Arc::clone(session);
                    self.add(id, LockCommand::CancelRequest(session, request));
                }
                None => {
                    let problem = "needs a session that was opened with a session_id";
                    self.events.push(failed(id, InvalidField::new("request", problem)));
                }
            },
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
            Ok(Command::KeepAlive(_)) => {
                self.keeper.keep_alive_arrived();
                self.next_beats.push(id);
            }
            Ok(Command::Open(open)) => {
                let opened = self.client_opens(&open);
                self.events.push(result(
                    id,
                    opened.map(|()| Answer::Other(Outcome::Open(OpenAccepted {}))),
                ));
            }
            Ok(Command::Close(close)) => self.stop(Phase::Closing {
                id,
                releases: close.release_leases,
            }),
            Ok(Command::Acquire(acquire)) => self.add(id, LockCommand::Acquire(acquire.into())),
            Ok(Command::Campaign(campaign)) => self.add(id, LockCommand::Acquire(campaign.into())),
            Ok(Command::AcquireAll(acquire)) => {
                let request = acquire.request.unwrap_or_default();
                self.add(id, LockCommand::AcquireAll(request, acquire.keep));
            }
            Ok(Command::ReleaseAll(release)) => self.add(id, LockCommand::ReleaseAll(release.lease_ids)),
            Ok(Command::UpdateMetadata(update)) => self.add(id, LockCommand::UpdateMetadata(update)),
            Ok(Command::Proclaim(Proclaim { lease_id, value })) => {
                self.add(id, LockCommand::Proclaim(ProclaimRequest { lease_id, value }));
            }
            Ok(Command::WatchLock(watch)) => self.watch(id, Watch::Lock(watch)),
            Ok(Command::Observe(observe)) => self.watch(id, Watch::Election(observe)),
            Ok(Command::Renew(renew)) => {
                self.add(id, LockCommand::Renew(LeaseKey::parse(&renew.lease_id), renew.ttl));
            }
            Ok(Command::Release(release)) => {
                let key = LeaseKey::parse(&release.lease_id);
                self.add(id, LockCommand::Release(key, release.keep_for));
            }
            Ok(Command::GetLock(get)) => self.add(id, LockCommand::GetLock(get)),
            Ok(Command::CheckToken(check)) => self.add(id, LockCommand::CheckToken(check)),
            Err(error) => {
                // It may have been a keep_alive, for which the client then waits to be asked.
                self.keeper.refused();
                self.events.push(failed(id, error));
            }
        }
        Ok(())
    }

    /// Notes which client this is, if that is the first command.
    fn client_opens(&mut self, open: &Open) -> Result<(), Status> {
        if !std::mem::take(&mut self.is_first_command) {
            let problem = "must be the first command of the session";
            return Err(status::of(InvalidField::new("open", problem)));
        }
        let client = ClientName::new(&open.client_name, &open.client_version).map_err(status::of)?;
        let session = self.to_resume(open).map_err(status::of)?;
        self.api.guarded.client_opened(&self.state, client);
        if let Some(session) = session {
            self.state.session_opened(session);
        }
        Ok(())
    }

    /// The stream of a session that can be resumed, if the client wants that.
    fn to_resume(&self, open: &Open) -> Result<Option<Arc<SessionStream>>, InvalidField> {
        let grace = convert::grace(open.grace)?;
        if open.session_id.is_empty() {
            return match (open.number, grace) {
                (0, Duration::ZERO) => Ok(None),
                _ => Err(InvalidField::new("session_id", "is required for a number or a grace")),
            };
        }
        if open.session_id.len() > SESSION_ID_BYTES {
            let problem = format!("must be at most {SESSION_ID_BYTES} bytes");
            return Err(InvalidField::new("session_id", problem));
        }
        if open.number == 0 {
            return Err(InvalidField::new("number", "must be at least 1"));
        }
        let identity = self.caller.identity.clone();
        Ok(Some(SessionStream::new(&open.session_id, open.number, grace, identity)))
    }

    /// Checks that a command may be executed.
    fn check(&self, command: Option<Command>) -> Result<Command, Error> {
        if self.phase != Phase::Open {
            return Err(InvalidField::new("command", "must not follow a close").into());
        }
        if self.is_unread() {
            return Err(self.not_read());
        }
        let Some(command) = command else {
            return Err(InvalidField::new("command", "must be one of the commands").into());
        };
        let (in_flight, what) = match may_wait(&command) {
            true => (self.waiting, "waits"),
            false => (self.commands.len() + self.beats() - self.waiting, "commands"),
        };
        if in_flight_limit(&command).is_some_and(|limit| in_flight >= limit) {
            let what = format!("{in_flight} {what} of this session are in flight");
            return Err(Error::Overloaded { what });
        }
        Ok(command)
    }

    /// Whether the client has not read so much that commands are refused.
    pub(super) fn is_unread(&self) -> bool {
        self.outbox.unread() + self.large_bytes >= self.unread_limit
    }

    /// Attaches leases, all or none.
    fn attach(&mut self, lease_ids: Vec<String>) -> Result<(), Error> {
        let mut leases = Vec::with_capacity(lease_ids.len());
        for (at, lease_id) in lease_ids.into_iter().enumerate() {
            let of_entry = |invalid: InvalidField| {
                InvalidField::new("lease_ids", format!("of lease_ids[{at}]: {}", invalid.problem))
            };
            let key = LeaseKey::parse(&lease_id).map_err(of_entry)?;
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
    pub(super) fn place(&self, id_bytes: usize, waits: bool) -> Result<LeasePlace, Error> {
        let of_session = self.places.take(id_bytes)?;
        let permits = &self.api.permits;
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
            self.keeper.beat_refused();
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
            if at > 0 && self.is_unread() {
                self.events.push(failed(id, self.not_read()));
                continue;
            }
            self.large_bytes += kept.encoded_len();
            let told = Kept { id, ..kept.clone() };
            self.events.push(event(Event::Kept(told)).into());
            kept.new_ttls.clear();
        }
    }

    /// Removes the wait of an Acquire that has its result.
    pub(super) fn forget_wait(&mut self, id: u64) {
        if let Some(end) = self.waits.remove(&id).and_then(|wait| wait.end) {
            self.waiting -= 1;
            self.delayed_until.remove(&(end, id));
        }
    }

    /// Ends the waits of Acquires that have not started, because commands before them on their locks are still under way.
    pub(super) fn end_waits(&mut self) {
        while let Some((end, id)) = self.delayed_until.first().copied()
            && end <= Instant::now()
        {
            self.delayed_until.pop_first();
            self.end_held_up(id);
        }
    }

    /// Ends an Acquire that has not started. Its call has all that is around it, and is not sent to the store, because it
    /// must not pass the commands before it.
    pub(super) fn end_held_up(&mut self, id: u64) {
        // Nothing if it has started meanwhile: its call ends its wait.
        match self.commands.take(id) {
            Some((LockCommand::Acquire(acquire), next)) => {
                self.start_acquire(id, acquire, true);
                self.start_all(next);
            }
            Some((command, next)) => {
                let waited = self.waits.get(&id).map(|wait| wait.control.arrived.elapsed());
                let error = match (self.phase, waited) {
                    (Phase::Draining, _) | (_, None) => Error::Draining,
                    (_, Some(waited)) => Error::WaitTimeout { waited },
                };
                self.fail_held_up(id, &command, status::of(error));
                self.start_all(next);
            }
            None => {}
        }
    }

    pub(super) fn progressed(&mut self, id: u64, progress: WaitProgress) {
        let next = match progress {
            WaitProgress::Sequenced => self.commands.sequenced(id),
            WaitProgress::Enqueued => self.commands.enqueued(id),
        };
        self.start_all(next);
    }

    pub(super) fn finished(&mut self, finished: Finished) {
        let Finished { id, answer, at_end } = finished;
        // What the client was told of a TTL before must not follow what this result tells.
        self.take_messages();
        self.forget_wait(id);
        match (at_end, &answer) {
            (AtEnd::Attach(place), Ok(Answer::Granted(granted))) => {
                let lease = granted.lease();
                self.keeper.attach(lease.key.clone(), Some(lease.ttl), place.held());
            }
            (AtEnd::AttachAll(places), Ok(Answer::GrantedAll(granted))) => {
                for (place, granted) in places.into_iter().zip(granted) {
                    let lease = granted.lease();
                    self.keeper.attach(lease.key.clone(), Some(lease.ttl), place.held());
                }
            }
            (AtEnd::Renewed(secret, sent), answer) => self.keeper.renew_ended(&secret, renewed_ttl(answer), sent),
            _ => {}
        }
        if let Err(status) = &answer
            && status::is_outage(status)
        {
            self.fail_behind(id, status);
        }
        let answer = self.within_limit(answer);
        self.events.push(result(id, answer));
        let next = self.commands.ended(id);
        self.start_all(next);
    }

    /// Fails what waits behind a command to which the store did not answer: one after the other, each would wait as long
    /// for it. An Acquire that has waited for less than an outage may last goes on, with what is behind it.
    fn fail_behind(&mut self, id: u64, status: &Status) {
        let tolerates = |wait: &Wait| wait.end.is_some() && wait.control.arrived.elapsed() < OUTAGE_TOLERANCE;
        let waits = &self.waits;
        let behind = self
            .commands
            .take_behind(id, |id| waits.get(&id).is_some_and(tolerates));
        for Started { id, command } in behind {
            self.fail_held_up(id, &command, status.clone());
        }
    }

    /// The answer, or OVERLOADED for the state of a lock while the client does not read: one may be as large as hundreds
    /// of other answers.
    fn within_limit(&mut self, answer: Result<Answer, Status>) -> Result<Answer, Status> {
        let Ok(Answer::Other(Outcome::GetLock(shown))) = &answer else {
            return answer;
        };
        if self.is_unread() {
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

/// Whether a command may wait: those that may are counted apart, because each of them may stay for as long as it likes.
fn may_wait(command: &Command) -> bool {
    let wait = match command {
        Command::Acquire(acquire) => acquire.request.as_ref().and_then(|request| request.wait),
        Command::AcquireAll(acquire) => acquire.request.as_ref().and_then(|request| request.wait),
        Command::Campaign(campaign) => campaign.wait,
        _ => None,
    };
    wait.is_some_and(|wait| end_of(wait, Instant::now()).is_some())
}

/// The number of commands in flight at which this one is refused. Commands that end or keep leases have twice the limit, so
/// that waits do not block them. Commands that end at once have none.
fn in_flight_limit(command: &Command) -> Option<usize> {
    match command {
        Command::Acquire(_)
        | Command::AcquireAll(_)
        | Command::Campaign(_)
        | Command::GetLock(_)
        | Command::CheckToken(_)
        | Command::UpdateMetadata(_)
        | Command::Proclaim(_) => Some(COMMANDS),
        Command::Renew(_)
        | Command::Release(_)
        | Command::ReleaseAll(_)
        | Command::KeepAlive(_)
        | Command::Cancel(Cancel { request: Some(_), .. }) => Some(2 * COMMANDS),
        // They have a limit of their own.
        Command::WatchLock(_) | Command::Observe(_) => None,
        Command::Open(_) | Command::Cancel(_) | Command::Attach(_) | Command::Detach(_) | Command::Close(_) => None,
    }
}

/// The TTL in the answer to a Renew.
fn renewed_ttl(answer: &Result<Answer, Status>) -> Option<Duration> {
    match answer {
        Ok(Answer::Other(Outcome::Renew(renewed))) => renewed.lease.as_ref()?.ttl?.try_into().ok(),
        _ => None,
    }
}
