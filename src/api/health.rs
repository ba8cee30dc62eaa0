//! The standard health service: the server as a whole (the empty name, or one of its services), which serves once each
//! store has served or was in quarantine ([`Namespaces::not_yet_served`]), and each namespace (`namespace/<name>`), which only callers with a permission in it can query.

use std::time::Duration;

use futures::future::{self, BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::access::RECHECK_INTERVAL;
use super::authenticate::Caller;
use crate::backend::Health;
use crate::error::Error;
use crate::name::Identity;
use crate::namespaces::Namespaces;
use crate::rpc::SERVICES;

/// The prefix of the name of a namespace's health.
const NAMESPACE_PREFIX: &str = "namespace/";

/// Answers health queries.
#[derive(Debug, Clone)]
pub(super) struct HealthApi {
    namespaces: Namespaces,
    drain: CancellationToken,
}

/// The target of a health query.
enum HealthTarget {
    Server(ServingStatus),
    Namespace(watch::Receiver<Health>),
    Unknown,
}

impl Caller {
    /// Whether the caller has a permission in the namespace.
    fn opens(&self, namespace: &str) -> bool {
        let Some(policy) = &self.policy else { return true };
        // A rule for all identities does not include anonymous callers.
        self.identity != Identity::anonymous() && policy.opens(&self.identity, namespace)
    }
}

impl HealthApi {
    /// The health of these namespaces, and of a server that serves until `drain`.
    pub(super) fn new(namespaces: Namespaces, drain: CancellationToken) -> Self {
        Self { namespaces, drain }
    }

    fn target(&self, caller: Option<&Caller>, service: &str) -> HealthTarget {
        // The server as a whole, by any of its names.
        if service.is_empty() || SERVICES.contains(&service) {
            // Kubelets and load balancers take it for readiness.
            return HealthTarget::Server(match self.namespaces.not_yet_served().is_empty() {
                true => ServingStatus::Serving,
                false => ServingStatus::NotServing,
            });
        }
        let name = service.strip_prefix(NAMESPACE_PREFIX);
        // A caller without permission must not learn from the health which namespaces exist.
        let opened = name.filter(|name| caller.is_some_and(|caller| caller.opens(name)));
        match opened.map(|name| self.namespaces.get(name)) {
            Some(Ok(locks)) => HealthTarget::Namespace(locks.health()),
            _ => HealthTarget::Unknown,
        }
    }

    /// The current status and each change, until the server ends with NOT_SERVING. The target is
    /// looked up again every `interval`, and whenever it may have changed.
    fn statuses<L: FnMut() -> BoxFuture<'static, HealthTarget> + Send>(
        &self,
        interval: Duration,
        find: L,
    ) -> impl Stream<Item = ServingStatus> + Send + use<L> {
        let drained = self.drain.clone().cancelled_owned();
        let follower = ServiceFollower {
            find,
            interval,
            table: self.namespaces.changes(),
            health: None,
        };
        let changes = stream::unfold((follower, true), |(mut follower, is_first)| async move {
            if !is_first {
                follower.changed().await;
            }
            Some((follower.status().await, (follower, false)))
        });
        only_changes(
            changes
                .take_until(drained)
                .chain(stream::iter([ServingStatus::NotServing])),
        )
    }
}

/// A watched service, while namespaces are added and removed.
struct ServiceFollower<L> {
    /// Finds the target.
    find: L,
    /// How often the target is looked up without a notification, because for example its caller's
    /// permissions may have changed.
    interval: Duration,
    table: watch::Receiver<()>,
    /// The health of its namespace, while there is one.
    health: Option<watch::Receiver<Health>>,
}

impl<L: FnMut() -> BoxFuture<'static, HealthTarget>> ServiceFollower<L> {
    /// The current status. The target is looked up again, because a namespace that was added again
    /// has another store.
    async fn status(&mut self) -> ServingStatus {
        self.table.mark_unchanged();
        self.health = None;
        match (self.find)().await {
            HealthTarget::Server(status) => status,
            HealthTarget::Unknown => ServingStatus::ServiceUnknown,
            HealthTarget::Namespace(health) => serving(&self.health.insert(health).borrow_and_update()),
        }
    }

    /// Waits until the status may have changed.
    async fn changed(&mut self) {
        let health = async {
            let changed = match &mut self.health {
                Some(health) => health.changed().await.is_ok(),
                None => false,
            };
            // A namespace with a closed store is about to leave the table.
            if !changed {
                future::pending::<()>().await;
            }
        };
        tokio::select! {
            // The table outlives this stream.
            _ = self.table.changed() => {}
            () = health => {}
            () = sleep(self.interval) => {}
        }
    }
}

fn only_changes(statuses: impl Stream<Item = ServingStatus> + Send) -> impl Stream<Item = ServingStatus> + Send {
    let mut last = None;
    statuses.filter(move |status| future::ready(last.replace(*status) != Some(*status)))
}

fn serving(health: &Health) -> ServingStatus {
    match health {
        Health::Serving => ServingStatus::Serving,
        Health::Quarantined { .. } | Health::Unavailable { .. } => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl HealthService for HealthApi {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let status = match self.target(Some(&caller), &message.service) {
            HealthTarget::Unknown => return Err(Status::not_found("there is no such service")),
            _ if self.drain.is_cancelled() => ServingStatus::NotServing,
            HealthTarget::Server(status) => status,
            HealthTarget::Namespace(health) => serving(&health.borrow()),
        };
        Ok(Response::new(response(status)))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (_, mut extensions, HealthCheckRequest { service }) = request.into_parts();
        let (api, caller) = (self.clone(), Caller::of(&mut extensions));
        let find = move || {
            let (api, caller, service) = (api.clone(), caller.clone(), service.clone());
            async move { api.target(caller.reauthenticate().await.ok().as_ref(), &service) }.boxed()
        };
        let statuses = self.statuses(RECHECK_INTERVAL, find);
        let statuses = statuses.map(|status| Ok(response(status)));
        // The statuses end only when the server does.
        let draining = stream::once(async { Err(super::status::of(Error::Draining)) });
        Ok(Response::new(statuses.chain(draining).boxed()))
    }
}

#[cfg(test)]
mod tests;
