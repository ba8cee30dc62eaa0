//! The calls of the API, each with a deadline, repeated where nobody answered.

use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::connections::{Connections, CallChannel};
use super::error::{Retryable, Error, Failed};
use crate::api::proto::admin_service_client::AdminServiceClient;
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::{
    CheckTokenRequest, CheckTokenResponse, ForceReleaseRequest, GetLockRequest, Lease, ListLocksRequest,
    ListLocksResponse, ListNamespacesRequest, LockState, NamespaceInfo, ReleaseRequest, RenewRequest, WatchLockRequest,
    WatchLockResponse,
};
use crate::clock;

/// The header that shows a bearer token.
const AUTHORIZATION: &str = "authorization";
/// How long one call may take that does not wait for a lock.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// How long it may take with all its repetitions.
const WHOLE: Duration = Duration::from_secs(10);
/// How often it is sent again, beyond once to each address.
const REPEATS: usize = 2;
/// How long the first repetition waits; each next one twice as long.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How long any repetition waits at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The larger pause after this one.
pub(super) fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

/// Every call that a client makes.
#[derive(Debug)]
pub(super) struct Calls {
    connections: Connections,
}

impl Calls {
    /// Calls over these connections.
    pub(super) fn new(connections: Connections) -> Self {
        Self { connections }
    }

    /// Sends a request once, and waits for the answer until `limit` has passed. A line that is silent
    /// is left. One that was not accepted is sent again where the file of the bearer token has another now.
    pub(super) async fn once<R: Clone, A, F>(
        &self,
        limit: Duration,
        request: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<A, Failed>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let line = self.connections.line();
        let answered = tokio::time::timeout(limit, self.proven(Some(limit), &line, request, send)).await;
        let failed = match answered {
            Ok(Ok(Ok(answer))) => return Ok(answer.into_inner()),
            Ok(Ok(Err(status))) => Failed::of(&status, &line.address),
            Ok(Err(unusable)) => return Err(unusable.into()),
            Err(_) => line.silent(limit),
        };
        self.leave(&line, &failed);
        Err(failed)
    }

    /// Sends a request, and once more where it was not accepted and there is another bearer token.
    async fn proven<R: Clone, A, F>(
        &self,
        limit: Option<Duration>,
        line: &CallChannel,
        message: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<Result<Response<A>, Status>, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let end = limit.map(|limit| clock::since_boot() + limit);
        let request = self.request(message.clone(), end).await?;
        let shown = request.metadata().get(AUTHORIZATION).cloned();
        let answered = send(line.channel.clone(), request).await;
        match &answered {
            Err(status) if status.code() == Code::Unauthenticated => {}
            _ => return Ok(answered),
        }
        if !self.connections.has_another(shown.as_ref()).await {
            return Ok(answered);
        }
        let again = self.request(message, end).await?;
        Ok(send(line.channel.clone(), again).await)
    }

    /// A request that says who sends it, and until when it is of use.
    async fn request<R>(&self, message: R, end: Option<Duration>) -> Result<Request<R>, Error> {
        let mut request = self.connections.request(message).await?;
        if let Some(end) = end {
            request.set_timeout(end.saturating_sub(clock::since_boot()));
        }
        Ok(request)
    }

    /// A server that answered is left only where there is another.
    fn leave(&self, line: &CallChannel, failed: &Failed) {
        let elsewhere = match failed.again {
            Retryable::Elsewhere => true,
            Retryable::Later => self.connections.count() > 1,
            Retryable::Never => false,
        };
        if elsewhere {
            self.connections.leave(line);
        }
    }

    /// The error to show for a failure: when nobody answered, every address was asked.
    pub(super) fn error(&self, failed: Failed) -> Error {
        match failed.error {
            Error::Unreachable { problem, .. } => Error::Unreachable {
                addresses: self.connections.addresses(),
                problem,
            },
            error => error,
        }
    }

    /// Sends a request until it is answered, or has been sent often or long enough.
    async fn call<R: Clone, A, F>(&self, request: R, send: impl Fn(Channel, Request<R>) -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let end = clock::since_boot() + WHOLE;
        let mut sends = self.connections.count() + REPEATS;
        let mut pause = FIRST_PAUSE;
        loop {
            let left = end.saturating_sub(clock::since_boot());
            let failed = match self.once(CALL.min(left), request.clone(), &send).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            sends -= 1;
            let over = clock::since_boot() + pause >= end;
            if failed.again != Retryable::Elsewhere || sends == 0 || over {
                return Err(self.error(failed));
            }
            tokio::time::sleep(pause).await;
            pause = longer(pause);
        }
    }

    /// Renews a lease by one call within `limit`.
    pub(super) async fn renew_once(&self, limit: Duration, lease_id: &str) -> Result<Lease, Failed> {
        let answer = self.once(limit, renewal(lease_id, None), renew).await?;
        answer.lease.ok_or_else(incomplete)
    }

    pub(super) async fn renew(&self, lease_id: &str, ttl: Option<Duration>) -> Result<Lease, Error> {
        let answer = self.call(renewal(lease_id, ttl), renew).await?;
        answer.lease.ok_or_else(|| incomplete().error)
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
        let answer = self.call(request, |channel, request| async move {
            LockServiceClient::new(channel).get_lock(request).await
        });
        answer.await?.lock.ok_or_else(|| incomplete().error)
    }

    pub(super) async fn list(
        &self,
        namespace: &str,
        prefix: &str,
        page_token: &str,
    ) -> Result<ListLocksResponse, Error> {
        let request = ListLocksRequest {
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
            page_size: 0,
            page_token: page_token.to_owned(),
        };
        let answer = self.call(request, |channel, request| async move {
            LockServiceClient::new(channel).list_locks(request).await
        });
        answer.await
    }

    /// The deadline is for the first message; later ones come when there is a change.
    pub(super) async fn watch(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<impl Stream<Item = Result<WatchLockResponse, Error>> + Send + use<>, Error> {
        let request = WatchLockRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let line = self.connections.line();
        let watch = |channel, request| async move { LockServiceClient::new(channel).watch_lock(request).await };
        let opened = tokio::time::timeout(CALL, self.proven(None, &line, request, watch)).await;
        let failed = match opened {
            Ok(Ok(Ok(messages))) => {
                let address = line.address;
                let messages = messages.into_inner();
                return Ok(messages.map(move |seen| seen.map_err(|status| Failed::of(&status, &address).error)));
            }
            Ok(Ok(Err(status))) => Failed::of(&status, &line.address),
            Ok(Err(unusable)) => return Err(unusable),
            Err(_) => line.silent(CALL),
        };
        self.leave(&line, &failed);
        Err(self.error(failed))
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
        let answer = self.call(request, |channel, request| async move {
            LockServiceClient::new(channel).check_token(request).await
        });
        answer.await
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

    pub(super) async fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        let answer = self.call(ListNamespacesRequest {}, |channel, request| async move {
            AdminServiceClient::new(channel).list_namespaces(request).await
        });
        Ok(answer.await?.namespaces)
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

/// An answer lacks what the API promises.
pub(super) fn incomplete() -> Failed {
    Failed::refused("INCOMPLETE", "the server's answer lacks what it must have")
}

/// A duration as it is sent; one that is too long for the API is cut, and refused there.
pub(super) fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A duration as it came; zero where there is none.
pub(super) fn duration(wire: Option<impl TryInto<Duration>>) -> Duration {
    wire.and_then(|wire| wire.try_into().ok()).unwrap_or_default()
}
