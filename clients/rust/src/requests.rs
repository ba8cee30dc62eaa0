//! The requests of the API, each with the method that takes it, and with the command of a session that does the same.

use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::proto;
use crate::proto::admin_service_client::AdminServiceClient;
use crate::proto::election_service_client::ElectionServiceClient;
use crate::proto::lock_service_client::LockServiceClient;
use crate::proto::session_command::{self, Command};
use crate::proto::session_event::command_result::Outcome;

/// A request, with the method that takes it.
pub(super) trait Rpc: Clone {
    /// The method's answer.
    type Answer;

    /// Whether it may be sent over a session.
    fn is_shared(&self) -> bool {
        false
    }

    /// The command of a session that does the same, where there is one.
    fn command(&self) -> Option<Command> {
        None
    }

    /// The answer in the outcome of that command.
    fn answer(_outcome: Outcome) -> Option<Self::Answer> {
        None
    }

    /// Whether it waits. As a call of its own it then has another connection: proxies limit the streams of one, and
    /// renewals must not queue behind waits.
    fn waits(&self) -> bool {
        false
    }

    /// Sends it over this channel.
    fn send(
        channel: Channel,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

/// Implements [`Rpc`] for the requests of these methods of a generated client.
///
/// With `as`, the request is also a command of this name, which is sent over a session if the first condition is met. It
/// waits if the second one is.
macro_rules! rpcs {
    ($client:ident: $($method:ident($request:ident) -> $answer:ty $(as $command:ident if $is_shared:expr, $waits:expr)?,)+) => {$(
        impl Rpc for proto::$request {
            type Answer = $answer;

            $(
                fn is_shared(&self) -> bool {
                    let is_shared: fn(&Self) -> bool = $is_shared;
                    is_shared(self)
                }

                fn waits(&self) -> bool {
                    let waits: fn(&Self) -> bool = $waits;
                    waits(self)
                }

                fn command(&self) -> Option<Command> {
                    Some(Command::$command(self.clone().into()))
                }

                fn answer(outcome: Outcome) -> Option<$answer> {
                    match outcome {
                        Outcome::$command(answer) => Some(answer),
                        _ => None,
                    }
                }
            )?

            async fn send(channel: Channel, request: Request<Self>) -> Result<Response<$answer>, Status> {
                $client::new(channel).$method(request).await
            }
        }
    )+};
}

rpcs! { LockServiceClient:
    acquire(AcquireRequest) -> proto::AcquireResponse as Acquire if waits, waits,
    renew(RenewRequest) -> proto::RenewResponse,
    release(ReleaseRequest) -> proto::ReleaseResponse as Release if |_| true, |_| false,
    update_metadata(UpdateMetadataRequest) -> proto::UpdateMetadataResponse,
    get_lock(GetLockRequest) -> proto::GetLockResponse,
    list_locks(ListLocksRequest) -> proto::ListLocksResponse,
    watch_lock(WatchLockRequest) -> Streaming<proto::WatchLockResponse>,
    check_token(CheckTokenRequest) -> proto::CheckTokenResponse,
}

rpcs! { ElectionServiceClient:
    proclaim(ProclaimRequest) -> proto::ProclaimResponse,
    get_leader(GetLeaderRequest) -> proto::GetLeaderResponse,
    observe(ObserveRequest) -> Streaming<proto::ObserveResponse>,
}

rpcs! { AdminServiceClient:
    force_release(ForceReleaseRequest) -> proto::ForceReleaseResponse,
    admit(AdmitRequest) -> proto::AdmitResponse,
    list_namespaces(ListNamespacesRequest) -> proto::ListNamespacesResponse,
    list_sessions(ListSessionsRequest) -> proto::ListSessionsResponse,
}

impl Rpc for HealthCheckRequest {
    type Answer = HealthCheckResponse;

    async fn send(channel: Channel, request: Request<Self>) -> Result<Response<Self::Answer>, Status> {
        HealthClient::new(channel).check(request).await
    }
}

impl From<proto::AcquireRequest> for session_command::Acquire {
    fn from(request: proto::AcquireRequest) -> Self {
        Self {
            request: Some(request),
            keep: false,
        }
    }
}

impl Rpc for proto::AcquireAllRequest {
    type Answer = proto::AcquireAllResponse;

    fn waits(&self) -> bool {
        self.wait.is_some()
    }

    async fn send(channel: Channel, request: Request<Self>) -> Result<Response<Self::Answer>, Status> {
        LockServiceClient::new(channel).acquire_all(request).await
    }
}

/// Whether an Acquire waits. A session executes others of one lock one after the other, and cannot cancel them.
fn waits(request: &proto::AcquireRequest) -> bool {
    request.wait.is_some()
}
