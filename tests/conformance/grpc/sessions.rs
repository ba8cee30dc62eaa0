//! Session: many operations on one stream.

use std::time::{Duration, Instant};

use fencepost::api::Settings;
use fencepost::api::proto::session_command::{Command, KeepAlive, Open};
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::session_event::{Event, Kept, LeaseError, OpenAccepted};
use fencepost::api::proto::{
    AcquireRequest, CheckTokenRequest, Lease, ListSessionsRequest, ReleaseRequest, RenewRequest, SessionInfo,
};
use fencepost::backend::{InspectLimit, ReleaseTarget};
use fencepost::name::LeaseKey;
use tonic::Code::{Aborted, Cancelled, InvalidArgument, NotFound, ResourceExhausted, Unavailable};
use tonic::Status;

use super::refused::{invalid, lost, refused};
use super::service::{LOCK, Service, acquire, check_token, get_lock, living, reentrant, semaphore, shared, waiting};
use crate::asks::wire;
use crate::fixture::{Fixture, NAMESPACE, lock};
use crate::session_client::{SessionClient, acquire as take, attach, cancel, close, detach, release, renew};

mod ending;
mod leases;
mod more;
mod results;
mod resumed;

pub use self::ending::*;
pub use self::leases::*;
pub use self::more::*;
pub use self::results::*;
pub use self::resumed::*;

/// Longer than an event takes that comes at once.
const SOON: Duration = Duration::from_secs(5);

async fn try_open(service: &Service) -> Result<SessionClient, Status> {
    let (commands, sent) = SessionClient::commands();
    let events = service.locks().session(sent).await?;
    SessionClient::opened(commands, events.into_inner()).await
}

async fn open(service: &Service) -> SessionClient {
    try_open(service).await.expect("a session")
}

fn on(name: &str, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        name: name.into(),
        ..ask
    }
}

async fn is_held(service: &Service, lease: &Lease) -> bool {
    let ask = CheckTokenRequest {
        name: lease.name.clone(),
        ..check_token(lease.fencing_token)
    };
    let checked = service.locks().check_token(ask).await;
    checked.expect("an answer").into_inner().held
}

fn reasons(not_renewed: &[LeaseError]) -> Vec<(&str, &str)> {
    let reasons = not_renewed
        .iter()
        .map(|lease| (lease.lease_id.as_str(), lease.reason.as_str()));
    reasons.collect()
}

fn refused_as_cancelled(result: Result<Outcome, Status>) {
    let status = result.expect_err("cancelled");
    assert_eq!(status.code(), Cancelled, "{status:?}");
}
