//! `AdminService`: what operators do by hand. What changes anything leaves a line in the log, under
//! the target `fencepost::audit`, and so does what was denied.

use tonic::{Request, Response, Status};

use super::access::Guarded;
use super::authenticate::Caller;
use super::connection::Peer;
use super::proto::admin_service_server::AdminService;
use super::{convert, proto, status};
use crate::error::Error;

/// The namespaces in the hands of their operators.
#[derive(Debug)]
pub(super) struct AdminApi {
    guarded: Guarded,
}

impl AdminApi {
    /// Serves these namespaces.
    pub(super) fn new(guarded: Guarded) -> Self {
        Self { guarded }
    }

    async fn force(&self, caller: &Caller, ask: &proto::ForceReleaseRequest) -> Result<(), Error> {
        let held = self.guarded.to_force(caller, &ask.namespace, &ask.name)?;
        let (name, token) = convert::lock_and_token(&ask.name, ask.fencing_token)?;
        held.force(&name, token).await
    }

    async fn end_quarantine(&self, caller: &Caller, ask: &proto::AdmitRequest) -> Result<(), Error> {
        let locks = self.guarded.to_admit(caller, &ask.namespace)?;
        locks.admit(convert::node(&ask.node)?).await
    }
}

/// Writes the line of the audit: who did what to whom, and what came of it. Text of callers is quoted,
/// so that it cannot pretend to be another line.
fn audit(caller: &Caller, action: &str, namespace: &str, object: &str, outcome: &Result<(), Error>) {
    let outcome = outcome.as_ref().map_or_else(ToString::to_string, |()| "done".into());
    let peer = caller.peer().as_ref().map_or_else(|| "unknown".into(), Peer::to_string);
    let identity = caller.identity.as_str();
    tracing::info!(target: "fencepost::audit", action, ?identity, %peer, ?namespace, ?object, ?outcome);
}

#[tonic::async_trait]
impl AdminService for AdminApi {
    async fn force_release(
        &self,
        request: Request<proto::ForceReleaseRequest>,
    ) -> Result<Response<proto::ForceReleaseResponse>, Status> {
        let (_, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let outcome = self.force(&caller, &ask).await;
        let object = format!("{} token {}", ask.name, ask.fencing_token);
        audit(&caller, "force_release", &ask.namespace, &object, &outcome);
        outcome.map_err(status::of)?;
        Ok(Response::new(proto::ForceReleaseResponse {}))
    }

    async fn list_namespaces(
        &self,
        mut request: Request<proto::ListNamespacesRequest>,
    ) -> Result<Response<proto::ListNamespacesResponse>, Status> {
        let caller = Caller::of(request.extensions_mut());
        let all = self.guarded.all(&caller).map_err(status::of)?;
        let namespaces = all.iter().map(convert::namespace).collect();
        Ok(Response::new(proto::ListNamespacesResponse { namespaces }))
    }

    async fn admit(&self, request: Request<proto::AdmitRequest>) -> Result<Response<proto::AdmitResponse>, Status> {
        let (_, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let outcome = self.end_quarantine(&caller, &ask).await;
        audit(&caller, "admit", &ask.namespace, &ask.node, &outcome);
        outcome.map_err(status::of)?;
        Ok(Response::new(proto::AdmitResponse {}))
    }
}
