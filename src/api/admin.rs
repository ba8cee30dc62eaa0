//! `AdminService`: what operators do by hand. What changes anything leaves a line in the log, under
//! the target `audit`.

use tonic::{Request, Response, Status};

use super::connection::Peer;
use super::proto::admin_service_server::AdminService;
use super::{convert, proto, status};
use crate::error::Error;
use crate::name::Identity;
use crate::namespaces::Namespaces;

/// The namespaces in the hands of their operators.
#[derive(Debug)]
pub(super) struct AdminApi {
    namespaces: Namespaces,
}

impl AdminApi {
    /// Serves these namespaces.
    pub(super) fn new(namespaces: Namespaces) -> Self {
        Self { namespaces }
    }

    async fn force(&self, ask: &proto::ForceReleaseRequest) -> Result<(), Error> {
        let locks = self.namespaces.get(&ask.namespace)?;
        let (name, token) = convert::lock_and_token(&ask.name, ask.fencing_token)?;
        locks.force_release(&name, token).await
    }

    async fn end_quarantine(&self, ask: &proto::AdmitRequest) -> Result<(), Error> {
        let locks = self.namespaces.get(&ask.namespace)?;
        locks.admit(convert::node(&ask.node)?).await
    }
}

/// Who asked for something, for the audit.
struct Actor {
    identity: Identity,
    peer: String,
}

impl Actor {
    fn of<T>(request: &Request<T>) -> Self {
        let peer = request.extensions().get::<Peer>();
        Self {
            identity: Identity::anonymous(),
            peer: peer.map_or_else(|| "unknown".into(), Peer::to_string),
        }
    }

    /// Writes the line: who did what to whom, and what came of it. Text of callers is quoted, so
    /// that it cannot pretend to be another line.
    fn did(&self, action: &str, namespace: &str, object: &str, outcome: &Result<(), Error>) {
        let outcome = outcome.as_ref().map_or_else(ToString::to_string, |()| "done".into());
        let (identity, peer) = (self.identity.as_str(), &self.peer);
        tracing::info!(target: "audit", action, ?identity, %peer, ?namespace, ?object, ?outcome);
    }
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn force_release(
        &self,
        request: Request<proto::ForceReleaseRequest>,
    ) -> Result<Response<proto::ForceReleaseResponse>, Status> {
        let actor = Actor::of(&request);
        let ask = request.into_inner();
        let outcome = self.force(&ask).await;
        let object = format!("{} token {}", ask.name, ask.fencing_token);
        actor.did("force_release", &ask.namespace, &object, &outcome);
        outcome.map_err(status::of)?;
        Ok(Response::new(proto::ForceReleaseResponse {}))
    }

    async fn list_namespaces(
        &self,
        _: Request<proto::ListNamespacesRequest>,
    ) -> Result<Response<proto::ListNamespacesResponse>, Status> {
        let namespaces = self.namespaces.all().iter().map(convert::namespace).collect();
        Ok(Response::new(proto::ListNamespacesResponse { namespaces }))
    }

    async fn admit(&self, request: Request<proto::AdmitRequest>) -> Result<Response<proto::AdmitResponse>, Status> {
        let actor = Actor::of(&request);
        let ask = request.into_inner();
        let outcome = self.end_quarantine(&ask).await;
        actor.did("admit", &ask.namespace, &ask.node, &outcome);
        outcome.map_err(status::of)?;
        Ok(Response::new(proto::AdmitResponse {}))
    }
}
