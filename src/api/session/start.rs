//! Starts the commands of a session that call the store.

use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::{FutureExt, TryFutureExt};
use tokio::task::unconstrained;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::Session;
use super::command_call::{AtEnd, CommandCall};
use super::events::Answer;
use crate::api::authenticate::Caller;
use crate::api::proto::session_command::RequestToCancel;
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::session_event::{Cancelled, Proclaimed};
use crate::api::proto::{
    AcquireAllRequest, AcquireRequest, CampaignRequest, CheckTokenRequest, GetLockRequest, LockToAcquire,
    ProclaimRequest, ReleaseAllResponse, UpdateMetadataRequest, session_command,
};
use crate::api::several::{self, AcquireAllCall};
use crate::api::status;
use crate::error::Error;
use crate::locks::SessionStream;
use crate::name::{InvalidField, LeaseKey};
use crate::rpc::path;
use crate::session::Started;

/// A command that calls the store. Its lease id is parsed once.
#[derive(Debug)]
pub(super) enum LockCommand {
    Acquire(Acquire),
    AcquireAll(AcquireAllRequest, bool),
    ReleaseAll(Vec<String>),
    UpdateMetadata(UpdateMetadataRequest),
    Proclaim(ProclaimRequest),
    CancelRequest(Arc<SessionStream>, RequestToCancel),
    Renew(Result<LeaseKey, InvalidField>, Option<prost_types::Duration>),
    Release(Result<LeaseKey, InvalidField>, Option<prost_types::Duration>),
    GetLock(GetLockRequest),
    CheckToken(CheckTokenRequest),
}

/// An Acquire or a Campaign.
#[derive(Debug)]
pub(super) struct Acquire {
    pub request: AcquireOf,
    /// Whether the lease is attached when it is granted.
    pub keep: bool,
}

#[derive(Debug)]
pub(super) enum AcquireOf {
    Lock(AcquireRequest),
    Election(CampaignRequest),
}

impl AcquireOf {
    /// The namespace and the name of its lock.
    pub(super) fn names(&self) -> (&str, &str) {
        match self {
            Self::Lock(request) => (&request.namespace, &request.name),
            Self::Election(request) => (&request.namespace, &request.election),
        }
    }

    pub(super) fn wait(&self) -> Option<prost_types::Duration> {
        match self {
            Self::Lock(request) => request.wait,
            Self::Election(request) => request.wait,
        }
    }

    fn path(&self) -> &'static str {
        match self {
            Self::Lock(_) => path::ACQUIRE,
            Self::Election(_) => path::CAMPAIGN,
        }
    }
}

impl From<session_command::Acquire> for Acquire {
    fn from(command: session_command::Acquire) -> Self {
        Self {
            request: AcquireOf::Lock(command.request.unwrap_or_default()),
            keep: command.keep,
        }
    }
}

impl From<session_command::Campaign> for Acquire {
    fn from(command: session_command::Campaign) -> Self {
        Self {
            request: AcquireOf::Election(CampaignRequest {
                namespace: command.namespace,
                election: command.election,
                candidate: command.candidate,
                value: command.value,
                ttl: command.ttl,
                wait: command.wait,
                request_id: command.request_id,
            }),
            keep: command.keep,
        }
    }
}

impl LockCommand {
    /// The path of its method.
    fn path(&self) -> &'static str {
        match self {
            Self::Acquire(acquire) => acquire.request.path(),
            Self::AcquireAll(..) => path::ACQUIRE_ALL,
            Self::ReleaseAll(_) => path::RELEASE_ALL,
            Self::UpdateMetadata(_) => path::UPDATE_METADATA,
            Self::Proclaim(_) => path::PROCLAIM,
            // It ends a grant as a Release does, and is admitted as one.
            Self::CancelRequest(..) => path::RELEASE,
            Self::Renew(..) => path::RENEW,
            Self::Release(..) => path::RELEASE,
            Self::GetLock(_) => path::GET_LOCK,
            Self::CheckToken(_) => path::CHECK_TOKEN,
        }
    }
}

impl Session {
    pub(super) fn start_all(&mut self, commands: impl IntoIterator<Item = Started<LockCommand>>) {
        for Started { id, command } in commands {
            self.start(id, command);
        }
    }

    fn start(&mut self, id: u64, command: LockCommand) {
        let (api, caller) = (Arc::clone(&self.api), Arc::clone(&self.caller));
        let (name, stream) = ((id, command.path()), self.state.session().cloned());
        match command {
            LockCommand::Acquire(acquire) => self.start_acquire(id, acquire, false),
            LockCommand::AcquireAll(request, keep) => self.start_acquire_all(id, request, keep),
            LockCommand::ReleaseAll(lease_ids) => self.run_call(name, AtEnd::Nothing, async move {
                let results = several::release_all(&api.guarded, &caller, None, lease_ids).await?;
                Ok(Outcome::ReleaseAll(ReleaseAllResponse { results }))
            }),
            LockCommand::UpdateMetadata(update) => self.run_call(name, AtEnd::Nothing, async move {
                let updated = api.update_metadata(Caller::clone(&caller), stream, update).await;
                updated.map(Outcome::UpdateMetadata)
            }),
            LockCommand::Proclaim(proclaim) => self.run_call(name, AtEnd::Nothing, async move {
                api.proclaim(Caller::clone(&caller), stream, proclaim).await?;
                Ok(Outcome::Proclaim(Proclaimed {}))
            }),
            LockCommand::CancelRequest(session, request) => self.run_call(name, AtEnd::Nothing, async move {
                api.cancel_request(&caller, &session, &request).await?;
                Ok(Outcome::Cancel(Cancelled {}))
            }),
            LockCommand::Renew(key, ttl) => {
                let at_end = match &key {
                    Ok(key) => {
                        self.keeper.renew_begins(&key.secret);
                        AtEnd::Renewed(key.secret, Instant::now())
                    }
                    Err(_) => AtEnd::Nothing,
                };
                self.run_call(name, at_end, async move {
                    api.renew(&caller, key?, ttl).await.map(Outcome::Renew)
                });
            }
            LockCommand::Release(key, keep_for) => self.run_call(name, AtEnd::Nothing, async move {
                api.release(&caller, key?, keep_for).await.map(Outcome::Release)
            }),
            LockCommand::GetLock(get) => self.run_call(name, AtEnd::Nothing, async move {
                let (state, _converted) = api.get_lock(&caller, get).await?;
                Ok(Outcome::GetLock(state))
            }),
            LockCommand::CheckToken(check) => self.run_call(name, AtEnd::Nothing, async move {
                api.check_token(&caller, check).await.map(Outcome::CheckToken)
            }),
        }
    }

    /// Starts an Acquire, maybe one whose wait is over.
    pub(super) fn start_acquire(&mut self, id: u64, acquire: Acquire, is_over: bool) {
        let Acquire { request, keep } = acquire;
        let mut control = self.waits.get(&id).map(|wait| wait.control.clone());
        let (path, (namespace, name)) = (request.path(), request.names());
        let place = || self.place(LeaseKey::id_bytes(namespace, name), control.is_some());
        let place = keep.then(place).transpose();
        let (refused, at_end) = match place {
            Ok(Some(place)) => (None, AtEnd::Attach(place)),
            Ok(None) => (None, AtEnd::Nothing),
            Err(error) => (Some(error), AtEnd::Nothing),
        };
        let cancelled = control.as_ref().map(|control| control.cancelled.clone());
        if let Some(control) = control.as_mut().filter(|_| is_over) {
            control.cancelled = ended();
        }
        let (api, caller) = (Arc::clone(&self.api), Caller::clone(&self.caller));
        let stream = self.state.session().cloned();
        let call = async move {
            refused.map_or(Ok(()), Err)?;
            let (namespace, acquire) = match request {
                AcquireOf::Lock(request) => api.to_acquire(caller, None, request)?,
                AcquireOf::Election(request) => api.to_campaign(caller, None, request)?,
            };
            let namespace = namespace.on(stream);
            match control.filter(|_| !acquire.wait.is_zero()) {
                Some(control) => namespace.controlled(control).wait_for(acquire)?.await,
                None => namespace.try_acquire(acquire)?.await,
            }
        };
        let is_cancelled = move || cancelled.is_some_and(|cancelled| cancelled.is_cancelled());
        let call = call.map_err(move |error| match error {
            Error::WaitTimeout { .. } if is_cancelled() => status::wait_cancelled(),
            error => status::of(error),
        });
        let granted = |granted| Answer::Granted(Box::new(granted));
        self.start_call((id, path), at_end, call.map_ok(granted));
    }

    fn start_acquire_all(&mut self, id: u64, request: AcquireAllRequest, keep: bool) {
        // A try is not cancelled.
        let wait = self.waits.get(&id).filter(|wait| wait.end.is_some());
        let control = wait.map(|wait| wait.control.clone());
        let place = |lock: &LockToAcquire| {
            let id_bytes = LeaseKey::id_bytes(&request.namespace, &lock.name);
            self.place(id_bytes, control.is_some())
        };
        let places = keep.then(|| request.locks.iter().map(place).collect()).transpose();
        let (refused, at_end) = match places {
            Ok(places) => (None, places.map_or(AtEnd::Nothing, AtEnd::AttachAll)),
            Err(error) => (Some(error), AtEnd::Nothing),
        };
        let (api, caller) = (Arc::clone(&self.api), Caller::clone(&self.caller));
        let stream = self.state.session().cloned();
        let call = async move {
            refused.map_or(Ok(()), |error| Err(status::of(error)))?;
            let call = AcquireAllCall::new(&api.guarded, &api.permits, caller, &MetadataMap::new(), request);
            let call = call.map_err(status::of)?.on(stream);
            let Some(control) = control else {
                return call.run().await.map_err(status::of);
            };
            tokio::select! {
                biased;
                granted = call.arrived_at(control.arrived).run() => granted.map_err(status::of),
                // What it holds is given back.
                () = control.cancelled.cancelled() => Err(status::wait_cancelled()),
            }
        };
        self.start_call((id, path::ACQUIRE_ALL), at_end, call.map_ok(Answer::GrantedAll));
    }

    /// Answers a command that has not started as the one before it. Its call has all that is around it.
    pub(super) fn fail_held_up(&mut self, id: u64, command: &LockCommand, status: Status) {
        self.start_call((id, command.path()), AtEnd::Nothing, ready(Err(status)));
    }

    fn run_call(
        &mut self,
        name: (u64, &'static str),
        at_end: AtEnd,
        call: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) {
        self.start_call(name, at_end, call.map_ok(Answer::Other).map_err(status::of));
    }

    fn start_call(
        &mut self,
        name: (u64, &'static str),
        at_end: AtEnd,
        call: impl Future<Output = Result<Answer, Status>> + Send + 'static,
    ) {
        // With the cooperative budget of the session's task, a command could be delayed and overtaken by later ones.
        let call = Box::pin(unconstrained(call));
        let mut call = CommandCall::begin((&self.api, &self.around), &self.caller, name, at_end, call);
        // What a store in memory answers at once needs no waker.
        match call.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(finished) => self.ready.push_back(finished),
            Poll::Pending => self.running.push(call),
        }
    }
}

/// Ends a wait before it begins.
fn ended() -> CancellationToken {
    let ended = CancellationToken::new();
    ended.cancel();
    ended
}
