//! The standard health service: the server as a whole (the empty name, or one of its services) and
//! each namespace (`namespace/<name>`).

use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::backend::Health;
use crate::error::Error;
use crate::namespaces::Namespaces;

/// What the name of a namespace's health begins with.
const NAMESPACE_PREFIX: &str = "namespace/";
/// The names of the server as a whole.
const SERVER: [&str; 3] = ["", "fencepost.v1.LockService", "fencepost.v1.AdminService"];

/// Answers who serves.
#[derive(Debug)]
pub(super) struct HealthApi {
    namespaces: Namespaces,
    drain: CancellationToken,
}

/// Whose health is asked for.
enum Asked {
    Server,
    Namespace(watch::Receiver<Health>),
    Unknown,
}

impl HealthApi {
    /// The health of these namespaces, and of a server that serves until `drain`.
    pub(super) fn new(namespaces: Namespaces, drain: CancellationToken) -> Self {
        Self { namespaces, drain }
    }

    fn asked(&self, service: &str) -> Asked {
        if SERVER.contains(&service) {
            return Asked::Server;
        }
        let namespace = service
            .strip_prefix(NAMESPACE_PREFIX)
            .map(|name| self.namespaces.get(name));
        match namespace {
            Some(Ok(locks)) => Asked::Namespace(locks.health()),
            _ => Asked::Unknown,
        }
    }

    /// The status now and each change, to the end of the server, which is NOT_SERVING.
    fn statuses(&self, asked: Asked) -> impl Stream<Item = ServingStatus> + Send + use<> {
        let changes = match asked {
            Asked::Server => stream::iter([ServingStatus::Serving]).boxed(),
            Asked::Namespace(health) => WatchStream::new(health).map(|health| serving(&health)).boxed(),
            Asked::Unknown => stream::iter([ServingStatus::ServiceUnknown]).boxed(),
        };
        let drained = self.drain.clone().cancelled_owned();
        let to_the_end = changes.chain(stream::pending()).take_until(drained);
        only_changes(to_the_end.chain(stream::iter([ServingStatus::NotServing])))
    }
}

fn only_changes(statuses: impl Stream<Item = ServingStatus> + Send) -> impl Stream<Item = ServingStatus> + Send {
    let mut last = None;
    statuses.filter(move |status| futures::future::ready(last.replace(*status) != Some(*status)))
}

fn serving(health: &Health) -> ServingStatus {
    match health {
        Health::Serving => ServingStatus::Serving,
        Health::Quarantined { .. } | Health::Away { .. } => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl HealthService for HealthApi {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let status = match self.asked(&request.get_ref().service) {
            Asked::Unknown => return Err(Status::not_found("there is no such service")),
            _ if self.drain.is_cancelled() => ServingStatus::NotServing,
            Asked::Server => ServingStatus::Serving,
            Asked::Namespace(health) => serving(&health.borrow()),
        };
        Ok(Response::new(response(status)))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let asked = self.asked(&request.get_ref().service);
        let statuses = self.statuses(asked).map(|status| Ok(response(status)));
        // They end only when the server does.
        let draining = stream::once(async { Err(super::status::of(Error::Draining)) });
        Ok(Response::new(statuses.chain(draining).boxed()))
    }
}

#[cfg(test)]
mod tests;
