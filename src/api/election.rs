//! `ElectionService`: each method calls the lock of the election's name.

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{BoxStream, StreamExt};
use tonic::{Code, Request, Response, Status};

use super::access::{CountedGrant, GuardedNamespaces, NamespaceToAcquire};
use super::authenticate::Caller;
use super::grant_delivery::Undelivered;
use super::lock::{caller_and_message, until};
use super::proto;
use super::proto::election_service_server::ElectionService;
use super::request_log::{CallName, bug};
use super::{convert, deadline, status};
use crate::elections::{self, Leader};
use crate::error::Error;
use crate::locks::Acquire;
use crate::name::{InvalidField, LeaseKey, LockName, Metadata};
use crate::quota::QuotaUse;
use crate::rpc::path;

/// The elections of all namespaces.
#[derive(Debug)]
pub(super) struct ElectionApi {
    guarded: GuardedNamespaces,
}

impl ElectionApi {
    /// Serves these namespaces.
    pub(super) fn new(guarded: GuardedNamespaces) -> Self {
        Self { guarded }
    }

    /// The namespace and the parameters of a Campaign.
    fn to_acquire(&self, request: Request<proto::CampaignRequest>) -> Result<(NamespaceToAcquire, Acquire), Error> {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let identity = caller.identity.clone();
        let namespace = self.guarded.to_acquire(caller, &message.namespace, &message.election)?;
        let metadata = Metadata::of_value(message.value)?;
        let acquire = proto::AcquireRequest {
            namespace: message.namespace,
            name: message.election,
            owner: message.candidate,
            ttl: message.ttl,
            wait: message.wait,
            request_id: message.request_id,
            ..proto::AcquireRequest::default()
        };
        let acquire = convert::acquire(acquire, identity).map_err(of_election)?;
        let mut acquire = Acquire { metadata, ..acquire };
        // Checked before the deadline shortens it: the limit does not depend on the deadline.
        namespace.limits().wait(acquire.wait)?;
        acquire.wait = deadline::shortened(acquire.wait, &headers);
        Ok((namespace, acquire))
    }
}

/// The name of an election.
fn election(name: &str) -> Result<LockName, InvalidField> {
    LockName::new(name).map_err(of_election)
}

/// An error about a field of a lock, with the field's name in this service.
fn of_election(error: InvalidField) -> InvalidField {
    let field = match error.field {
        "name" => "election",
        "owner" => "candidate",
        field => field,
    };
    InvalidField { field, ..error }
}

/// The answer to a Campaign.
fn answer(granted: Result<CountedGrant, Error>) -> Result<Response<proto::CampaignResponse>, Status> {
    let granted = granted.map_err(status::of)?;
    let mut response = Response::new(proto::CampaignResponse {
        leadership: Some(convert::lease(granted.lease())),
    });
    response.extensions_mut().insert(Undelivered::new(granted));
    Ok(response)
}

/// Encodes the leaders that one Observe call shows.
struct ObserveEncoder {
    call: Option<CallName>,
    /// The entry of this stream in the caller's quota.
    _quota: QuotaUse,
}

impl ObserveEncoder {
    fn encode(&self, leader: Result<Option<Leader>, Error>) -> Result<proto::ObserveResponse, Status> {
        let leader = leader.map_err(|error| self.failed(error))?;
        Ok(proto::ObserveResponse {
            leader: leader.as_ref().map(convert::leader),
        })
    }

    /// A stream's trailers carry no source, so internal errors are logged here.
    fn failed(&self, error: Error) -> Status {
        let status = status::of(error);
        if let (Code::Internal, Some(call)) = (status.code(), &self.call) {
            bug(call, path::OBSERVE, &status);
        }
        status
    }
}

#[tonic::async_trait]
impl ElectionService for ElectionApi {
    /// No async function, which would keep as much for a waiting call as for one that does not wait.
    fn campaign<'own, 'call>(
        &'own self,
        request: Request<proto::CampaignRequest>,
    ) -> BoxFuture<'call, Result<Response<proto::CampaignResponse>, Status>>
    where
        'own: 'call,
    {
        let begun = self.to_acquire(request).and_then(|(namespace, acquire)| {
            if acquire.wait.is_zero() {
                return Ok(namespace.try_acquire(acquire)?.map(answer).boxed());
            }
            Ok(namespace.wait_for(acquire)?.map(answer).boxed())
        });
        begun.unwrap_or_else(|error| ready(Err(status::of(error))).boxed())
    }

    async fn proclaim(
        &self,
        request: Request<proto::ProclaimRequest>,
    ) -> Result<Response<proto::ProclaimResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id).map_err(status::of)?;
        let locks = self.guarded.lease_to_update(&caller, &key).map_err(status::of)?;
        let value = Metadata::of_value(message.value).map_err(status::of)?;
        locks.update_metadata(&key, &value).await.map_err(status::of)?;
        Ok(Response::new(proto::ProclaimResponse {}))
    }

    async fn get_leader(
        &self,
        request: Request<proto::GetLeaderRequest>,
    ) -> Result<Response<proto::GetLeaderResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let locks = self.guarded.to_read(&caller, &message.namespace, &message.election);
        let locks = locks.map_err(status::of)?;
        let name = election(&message.election).map_err(status::of)?;
        let leader = elections::leader(&locks, &name).await.map_err(status::of)?;
        Ok(Response::new(proto::GetLeaderResponse {
            leader: leader.as_ref().map(convert::leader),
        }))
    }

    type ObserveStream = BoxStream<'static, Result<proto::ObserveResponse, Status>>;

    async fn observe(&self, request: Request<proto::ObserveRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let watched = self.guarded.to_watch(&caller, &message.namespace, &message.election);
        let (locks, quota) = watched.map_err(status::of)?;
        let name = election(&message.election).map_err(status::of)?;
        let guarded = self.guarded.clone();
        let denied = guarded.until_denied(caller, message.namespace, message.election);
        let encoder = ObserveEncoder {
            call: extensions.remove(),
            _quota: quota,
        };
        let leaders = until(denied, elections::observe(locks, name)).map(move |leader| encoder.encode(leader));
        Ok(Response::new(leaders.boxed()))
    }

    async fn resign(&self, request: Request<proto::ResignRequest>) -> Result<Response<proto::ResignResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id).map_err(status::of)?;
        let locks = self.guarded.lease(&caller, &key).map_err(status::of)?;
        locks.release(&key).await.map_err(status::of)?;
        Ok(Response::new(proto::ResignResponse {}))
    }
}
