//! The calls of the API, each with a deadline, repeated if no server answered.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use super::connections::{CallChannel, Connections};
use super::error::{Error, Failed, Retryable};
use crate::api::proto::admin_service_client::AdminServiceClient;
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::{
    AdmitRequest, CheckTokenRequest, CheckTokenResponse, ForceReleaseRequest, GetLockRequest, Lease, ListLocksRequest,
    ListLocksResponse, ListNamespacesRequest, ListSessionsRequest, ListSessionsResponse, LockState, NamespaceInfo,
    ReleaseRequest, RenewRequest, WatchLockRequest, WatchLockResponse,
};
use crate::backoff::Backoff;
use crate::clock;

/// The header with the bearer token.
const AUTHORIZATION: &str = "authorization";
/// The deadline of a single call that does not wait for a lock.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// The deadline of a call with all its repetitions.
const CALL_WITH_REPEATS: Duration = Duration::from_secs(10);
/// How often a call is repeated, in addition to once per address.
const REPEATS: usize = 2;
/// The pauses before repetitions.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The calls of a client.
#[derive(Debug)]
pub(super) struct Calls {
    connections: Connections,
}

impl Calls {
    /// Makes calls over these connections.
    pub(super) fn new(connections: Connections) -> Self {
        Self { connections }
    }

    /// Sends a request once and waits at most `limit` for the response. A channel without a response is replaced. If
    /// the credentials are rejected and the file now contains another bearer token, the request is sent again with it.
    pub(super) async fn once<R: Clone, A, F>(
        &self,
        limit: Duration,
        request: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<A, Failed>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let channel = self.connections.channel();
        let response = self.send_with_credentials(Some(limit), &channel, request, send);
        self.response(&channel, limit, response).await
    }

    /// Opens a stream on this channel, like [`Calls::once`]. The deadline of a call applies to what `send` awaits, not
    /// to the stream.
    pub(super) async fn open<R: Clone, A, F>(
        &self,
        channel: &CallChannel,
        request: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<A, Failed>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let response = self.send_with_credentials(None, channel, request, send);
        self.response(channel, CALL, response).await
    }

    async fn response<A>(
        &self,
        channel: &CallChannel,
        limit: Duration,
        response: impl Future<Output = Result<Result<Response<A>, Status>, Error>>,
    ) -> Result<A, Failed> {
        let failed = match tokio::time::timeout(limit, response).await {
            Ok(Ok(Ok(response))) => return Ok(response.into_inner()),
            Ok(Ok(Err(status))) => Failed::of(&status, &channel.address),
            Ok(Err(unusable)) => return Err(unusable.into()),
            Err(_) => channel.no_response(limit),
        };
        self.replace_channel(channel, &failed);
        Err(failed)
    }

    /// The channel in use.
    pub(super) fn channel(&self) -> CallChannel {
        self.connections.channel()
    }

    /// Whether this is the channel in use.
    pub(super) fn uses(&self, channel: &CallChannel) -> bool {
        self.connections.uses(channel)
    }

    /// Sends a request, and once more if the credentials are rejected and there is another bearer token.
    async fn send_with_credentials<R: Clone, A, F>(
        &self,
        limit: Option<Duration>,
        channel: &CallChannel,
        message: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<Result<Response<A>, Status>, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let end = limit.map(|limit| clock::since_boot() + limit);
        let request = self.request(message.clone(), end).await?;
        let presented = request.metadata().get(AUTHORIZATION).cloned();
        let response = send(channel.channel.clone(), request).await;
        match &response {
            Err(status) if status.code() == Code::Unauthenticated => {}
            _ => return Ok(response),
        }
        if !self.connections.has_another(presented.as_ref()).await {
            return Ok(response);
        }
        let retry = self.request(message, end).await?;
        Ok(send(channel.channel.clone(), retry).await)
    }

    /// A request with credentials and a deadline.
    async fn request<R>(&self, message: R, end: Option<Duration>) -> Result<Request<R>, Error> {
        let mut request = self.connections.request(message).await?;
        if let Some(end) = end {
            request.set_timeout(end.saturating_sub(clock::since_boot()));
        }
        Ok(request)
    }

    /// Replaces the channel after a failure. If a server has answered, only if there is another address.
    pub(super) fn replace_channel(&self, channel: &CallChannel, failed: &Failed) {
        let elsewhere = match failed.retry {
            Retryable::Elsewhere => true,
            Retryable::Later => self.connections.count() > 1,
            Retryable::Never => false,
        };
        if elsewhere {
            self.connections.replace_channel(channel);
        }
    }

    /// The error for the caller: if no server answered, with all addresses.
    pub(super) fn error(&self, failed: Failed) -> Error {
        match failed.error {
            Error::Unreachable { problem, .. } => Error::Unreachable {
                addresses: self.connections.addresses(),
                problem,
            },
            error => error,
        }
    }

    /// Repeats a request until a server answers, or its number of attempts or its deadline is reached.
    pub(super) async fn call<R: Clone, A, F>(
        &self,
        request: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let end = clock::since_boot() + CALL_WITH_REPEATS;
        let mut attempts = self.connections.count() + REPEATS;
        let mut backoff = BACKOFF;
        loop {
            let left = end.saturating_sub(clock::since_boot());
            let failed = match self.once(CALL.min(left), request.clone(), &send).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            attempts -= 1;
            let pause = backoff.pause();
            let is_too_late = clock::since_boot() + pause >= end;
            if failed.retry != Retryable::Elsewhere || attempts == 0 || is_too_late {
                return Err(self.error(failed));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends one renewal, with the deadline `limit`.
    pub(super) async fn renew_once(&self, limit: Duration, lease_id: &str) -> Result<Lease, Failed> {
        let response = self.once(limit, renewal(lease_id, None), renew).await?;
        response.lease.ok_or_else(incomplete)
    }

    pub(super) async fn renew(&self, lease_id: &str, ttl: Option<Duration>) -> Result<Lease, Error> {
        let response = self.call(renewal(lease_id, ttl), renew).await?;
        response.lease.ok_or_else(|| incomplete().error)
    }

    pub(super) async fn release(&self, lease_id: &str) -> Result<(), Error> {
        let lease_id = lease_id.to_owned();
        let released = self.call(ReleaseRequest { lease_id }, |channel, request| async move {
            LockServiceClient::new(channel).release(request).await
        });
        released.await.map(drop)
    }

    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<LockState, Error> {
        let request = GetLockRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let response = self.call(request, |channel, request| async move {
            LockServiceClient::new(channel).get_lock(request).await
        });
        response.await?.lock.ok_or_else(|| incomplete().error)
    }

    pub(super) async fn list(
        &self,
        namespace: &str,
        prefix: &str,
        page_size: i32,
        page_token: &str,
    ) -> Result<ListLocksResponse, Error> {
        let request = ListLocksRequest {
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
            page_size,
            page_token: page_token.to_owned(),
        };
        let response = self.call(request, |channel, request| async move {
            LockServiceClient::new(channel).list_locks(request).await
        });
        response.await
    }

    pub(super) async fn watch(
        self: &Arc<Self>,
        namespace: &str,
        name: &str,
    ) -> Result<impl Stream<Item = Result<WatchLockResponse, Error>> + Send + use<>, Error> {
        let request = WatchLockRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let watch = |channel, request| async move { LockServiceClient::new(channel).watch_lock(request).await };
        self.open_stream(request, watch).await
    }

    /// Opens a stream. The deadline applies to the first message, the present state; the others follow at each change.
    /// When it fails because of its server, the next call is sent to another one.
    pub(super) async fn open_stream<R: Clone, M, O, F>(
        self: &Arc<Self>,
        request: R,
        open: O,
    ) -> Result<impl Stream<Item = Result<M, Error>> + Send + use<R, M, O, F>, Error>
    where
        M: Send + 'static,
        O: Fn(Channel, Request<R>) -> F,
        F: Future<Output = Result<Response<Streaming<M>>, Status>>,
    {
        let channel = self.connections.channel();
        let opened = self.open(&channel, request, |channel, request| {
            let opening = open(channel, request);
            async {
                let mut messages = opening.await?.into_inner();
                Ok(Response::new((messages.next().await, messages)))
            }
        });
        let (first, messages) = opened.await.map_err(|failed| self.error(failed))?;
        let messages = stream::iter(first).chain(messages);
        let calls = Arc::clone(self);
        Ok(messages.map(move |event| {
            event.map_err(|status| {
                let failed = Failed::of(&status, &channel.address);
                calls.replace_channel(&channel, &failed);
                failed.error
            })
        }))
    }

    pub(super) async fn check_token(
        &self,
        namespace: &str,
        name: &str,
        token: u64,
    ) -> Result<CheckTokenResponse, Error> {
        let request = CheckTokenRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            fencing_token: token,
        };
        let response = self.call(request, |channel, request| async move {
            LockServiceClient::new(channel).check_token(request).await
        });
        response.await
    }

    pub(super) async fn force_release(&self, namespace: &str, name: &str, token: u64) -> Result<(), Error> {
        let request = ForceReleaseRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            fencing_token: token,
        };
        let forced = self.call(request, |channel, request| async move {
            AdminServiceClient::new(channel).force_release(request).await
        });
        forced.await.map(drop)
    }

    pub(super) async fn admit(&self, namespace: &str, node: &str) -> Result<(), Error> {
        let request = AdmitRequest {
            namespace: namespace.to_owned(),
            node: node.to_owned(),
        };
        let admitted = self.call(request, |channel, request| async move {
            AdminServiceClient::new(channel).admit(request).await
        });
        admitted.await.map(drop)
    }

    pub(super) async fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        let response = self.call(ListNamespacesRequest {}, |channel, request| async move {
            AdminServiceClient::new(channel).list_namespaces(request).await
        });
        Ok(response.await?.namespaces)
    }

    pub(super) async fn sessions(&self, page_token: &str) -> Result<ListSessionsResponse, Error> {
        let request = ListSessionsRequest {
            page_size: i32::MAX,
            page_token: page_token.to_owned(),
        };
        let response = self.call(request, |channel, request| async move {
            AdminServiceClient::new(channel).list_sessions(request).await
        });
        response.await
    }
}

async fn renew(
    channel: Channel,
    request: Request<RenewRequest>,
) -> Result<Response<crate::api::proto::RenewResponse>, Status> {
    LockServiceClient::new(channel).renew(request).await
}

fn renewal(lease_id: &str, ttl: Option<Duration>) -> RenewRequest {
    RenewRequest {
        lease_id: lease_id.to_owned(),
        ttl: ttl.map(wire),
    }
}

/// The error for a response without a required field.
pub(super) fn incomplete() -> Failed {
    Failed::refused("INCOMPLETE", "the server's response lacks a required field")
}

/// Converts a duration for the API. One that is too long becomes the maximum, which the server rejects.
pub(super) fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// Converts a duration of the API; zero if absent.
pub(super) fn duration(wire: Option<impl TryInto<Duration>>) -> Duration {
    wire.and_then(|wire| wire.try_into().ok()).unwrap_or_default()
}
