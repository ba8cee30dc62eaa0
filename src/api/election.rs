//! `ElectionService`: each method calls the lock of the election's name.

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status};

use super::access::{GuardedNamespaces, NamespaceToAcquire};
use super::authenticate::Caller;
use super::lock::{acquired, answer, caller_and_message, messages};
use super::proto::election_service_server::ElectionService;
use super::{convert, deadline, proto};
use crate::elections;
use crate::error::Error;
use crate::locks::Acquire;
use crate::name::{InvalidField, LeaseKey, LockName, Metadata};
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

#[tonic::async_trait]
impl ElectionService for ElectionApi {
    fn campaign<'own, 'call>(
        &'own self,
        request: Request<proto::CampaignRequest>,
    ) -> BoxFuture<'call, Result<Response<proto::CampaignResponse>, Status>>
    where
        'own: 'call,
    {
        acquired(self.to_acquire(request), |granted| {
            answer(granted, |leadership| proto::CampaignResponse { leadership })
        })
    }

    async fn proclaim(
        &self,
        request: Request<proto::ProclaimRequest>,
    ) -> Result<Response<proto::ProclaimResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id)?;
        let locks = self.guarded.lease_to_update(&caller, &key)?;
        locks.update_metadata(&key, &Metadata::of_value(message.value)?).await?;
        Ok(Response::new(proto::ProclaimResponse {}))
    }

    async fn get_leader(
        &self,
        request: Request<proto::GetLeaderRequest>,
    ) -> Result<Response<proto::GetLeaderResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let locks = self.guarded.to_read(&caller, &message.namespace, &message.election)?;
        let leader = elections::leader(&locks, &election(&message.election)?).await?;
        Ok(Response::new(proto::GetLeaderResponse {
            leader: leader.as_ref().map(convert::leader),
        }))
    }

    type ObserveStream = BoxStream<'static, Result<proto::ObserveResponse, Status>>;

    async fn observe(&self, request: Request<proto::ObserveRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let (locks, permission) = self.guarded.to_watch(caller, &message.namespace, &message.election)?;
        let name = election(&message.election)?;
        let (stream, denied) = (
            (extensions.remove(), path::OBSERVE),
            permission.until_denied(name.clone()),
        );
        let leaders = elections::observe(locks, name);
        Ok(messages(stream, denied, leaders, |leader| proto::ObserveResponse {
            leader: leader.as_ref().map(convert::leader),
        }))
    }

    async fn resign(&self, request: Request<proto::ResignRequest>) -> Result<Response<proto::ResignResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id)?;
        self.guarded.lease(&caller, &key)?.release(&key).await?;
        Ok(Response::new(proto::ResignResponse {}))
    }
}
