//! `ElectionService`: each method calls the lock of the election's name.

use std::sync::Arc;

use futures::future::BoxFuture;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::access::NamespaceToAcquire;
use super::authenticate::Caller;
use super::lock::{acquired, messages};
use super::shared::{Api, Messages};
use super::{convert, proto};
use crate::elections;
use crate::error::Error;
use crate::locks::{Acquire, SessionStream};
use crate::name::{InvalidField, LeaseKey, LockName, Metadata};
use crate::rpc::path;

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

impl Api {
    pub(super) fn campaign(
        self: Arc<Self>,
        request: Request<proto::CampaignRequest>,
    ) -> BoxFuture<'static, Result<Response<proto::CampaignResponse>, Status>> {
        let (headers, mut extensions, message) = request.into_parts();
        let allowed = self.to_campaign(Caller::of(&mut extensions), Some(&headers), message);
        acquired(allowed, |leadership| proto::CampaignResponse { leadership })
    }

    /// The namespace and the parameters of a Campaign.
    pub(super) fn to_campaign(
        &self,
        caller: Caller,
        headers: Option<&MetadataMap>,
        message: proto::CampaignRequest,
    ) -> Result<(NamespaceToAcquire, Acquire), Error> {
        let acquire = proto::AcquireRequest {
            namespace: message.namespace,
            name: message.election,
            owner: message.candidate,
            ttl: message.ttl,
            wait: message.wait,
            request_id: message.request_id,
            ..proto::AcquireRequest::default()
        };
        self.to_acquire_as(caller, headers, acquire, |acquire, identity| {
            let metadata = Metadata::of_value(message.value)?;
            let acquire = convert::acquire(acquire, identity).map_err(of_election)?;
            Ok(Acquire { metadata, ..acquire })
        })
    }

    pub(super) async fn proclaim(
        self: Arc<Self>,
        caller: Caller,
        stream: Option<Arc<SessionStream>>,
        message: proto::ProclaimRequest,
    ) -> Result<proto::ProclaimResponse, Error> {
        let key = LeaseKey::parse(&message.lease_id)?;
        let locks = self.guarded.lease_to_update(&caller, &key)?;
        let value = Metadata::of_value(message.value)?;
        locks.update_metadata_on(stream.as_deref(), &key, &value).await?;
        Ok(proto::ProclaimResponse {})
    }

    pub(super) async fn get_leader(
        self: Arc<Self>,
        caller: Caller,
        message: proto::GetLeaderRequest,
    ) -> Result<proto::GetLeaderResponse, Error> {
        let locks = self.guarded.to_read(&caller, &message.namespace, &message.election)?;
        let leader = elections::leader(&locks, &election(&message.election)?).await?;
        let leader = leader.as_ref().map(convert::leader);
        Ok(proto::GetLeaderResponse { leader })
    }

    pub(super) fn observe(
        self: Arc<Self>,
        request: Request<proto::ObserveRequest>,
    ) -> Result<Response<Messages<proto::ObserveResponse>>, Error> {
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

    pub(super) async fn resign(
        self: Arc<Self>,
        caller: Caller,
        message: proto::ResignRequest,
    ) -> Result<proto::ResignResponse, Error> {
        self.release(&caller, LeaseKey::parse(&message.lease_id)?, None).await?;
        Ok(proto::ResignResponse {})
    }
}
