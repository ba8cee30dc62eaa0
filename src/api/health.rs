//! The standard health service: the server as a whole (the empty name, or one of its services) and
//! each namespace (`namespace/<name>`), which is there for those alone to whom a rule opens it.

use std::time::Duration;

use futures::future;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::access::LOOK_AGAIN;
use super::authenticate::Caller;
use crate::backend::Health;
use crate::error::Error;
use crate::name::Identity;
use crate::namespaces::Namespaces;

/// What the name of a namespace's health begins with.
const NAMESPACE_PREFIX: &str = "namespace/";
/// The names of the server as a whole.
const SERVER: [&str; 3] = ["", "fencepost.v1.LockService", "fencepost.v1.AdminService"];

/// Answers who serves.
#[derive(Debug, Clone)]
pub(super) struct HealthApi {
    namespaces: Namespaces,
    drain: CancellationToken,
}

/// Whose health is asked for.
enum HealthTarget {
    Server,
    Namespace(watch::Receiver<Health>),
    Unknown,
}

impl Caller {
    /// Whether a namespace is there for it.
    fn opens(&self, namespace: &str) -> bool {
        let Some(policy) = &self.policy else { return true };
        // A rule for everybody is for everybody who is somebody.
        self.identity != Identity::anonymous() && policy.opens(&self.identity, namespace)
    }
}

impl HealthApi {
    /// The health of these namespaces, and of a server that serves until `drain`.
    pub(super) fn new(namespaces: Namespaces, drain: CancellationToken) -> Self {
        Self { namespaces, drain }
    }

    fn asked(&self, caller: Option<&Caller>, service: &str) -> HealthTarget {
        if SERVER.contains(&service) {
            return HealthTarget::Server;
        }
        let name = service.strip_prefix(NAMESPACE_PREFIX);
        // Whoever may not know which namespaces there are is not told by their health.
        let opened = name.filter(|name| caller.is_some_and(|caller| caller.opens(name)));
        match opened.map(|name| self.namespaces.get(name)) {
            Some(Ok(locks)) => HealthTarget::Namespace(locks.health()),
            _ => HealthTarget::Unknown,
        }
    }

    /// The status now and each change, to the end of the server, which is NOT_SERVING.
    /// It is looked up anew `every` so often, and whenever it may have changed.
    fn statuses<L: FnMut() -> HealthTarget + Send>(
        &self,
        every: Duration,
        look: L,
    ) -> impl Stream<Item = ServingStatus> + Send + use<L> {
        let drained = self.drain.clone().cancelled_owned();
        let follow = Follow {
            look,
            every,
            table: self.namespaces.changes(),
            health: None,
        };
        let changes = stream::unfold((follow, true), |(mut follow, is_first)| async move {
            if !is_first {
                follow.changed().await;
            }
            Some((follow.status(), (follow, false)))
        });
        only_changes(
            changes
                .take_until(drained)
                .chain(stream::iter([ServingStatus::NotServing])),
        )
    }
}

/// A service that is watched, while namespaces come and go.
struct Follow<L> {
    /// Finds it.
    look: L,
    /// What it depends on may change without a word, such as what its caller may know.
    every: Duration,
    table: watch::Receiver<()>,
    /// That of its namespace, while there is one.
    health: Option<watch::Receiver<Health>>,
}

impl<L: FnMut() -> HealthTarget> Follow<L> {
    /// How it is now. It is looked up anew: a namespace that came back has another store.
    fn status(&mut self) -> ServingStatus {
        self.table.mark_unchanged();
        self.health = None;
        match (self.look)() {
            HealthTarget::Server => ServingStatus::Serving,
            HealthTarget::Unknown => ServingStatus::ServiceUnknown,
            HealthTarget::Namespace(health) => serving(&self.health.insert(health).borrow_and_update()),
        }
    }

    /// Waits until it may be otherwise.
    async fn changed(&mut self) {
        let health = async {
            let told = match &mut self.health {
                Some(health) => health.changed().await.is_ok(),
                None => false,
            };
            // Whose store is closed is about to leave the table.
            if !told {
                future::pending::<()>().await;
            }
        };
        tokio::select! {
            // The table lives as long as its API does.
            _ = self.table.changed() => {}
            () = health => {}
            () = sleep(self.every) => {}
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
        let (_, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let status = match self.asked(Some(&caller), &ask.service) {
            HealthTarget::Unknown => return Err(Status::not_found("there is no such service")),
            _ if self.drain.is_cancelled() => ServingStatus::NotServing,
            HealthTarget::Server => ServingStatus::Serving,
            HealthTarget::Namespace(health) => serving(&health.borrow()),
        };
        Ok(Response::new(response(status)))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (_, mut extensions, HealthCheckRequest { service }) = request.into_parts();
        let (api, caller) = (self.clone(), Caller::of(&mut extensions));
        let look = move || api.asked(caller.again().ok().as_ref(), &service);
        let statuses = self.statuses(LOOK_AGAIN, look);
        let statuses = statuses.map(|status| Ok(response(status)));
        // They end only when the server does.
        let draining = stream::once(async { Err(super::status::of(Error::Draining)) });
        Ok(Response::new(statuses.chain(draining).boxed()))
    }
}

#[cfg(test)]
mod tests;
