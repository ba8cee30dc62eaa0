//! `LockService`: each method converts its message, calls [`crate::locks::Locks`] once, and
//! converts the outcome.

use std::sync::Arc;
use std::task::Poll;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use super::access::{CountedGrant, GuardedNamespaces};
use super::authenticate::Caller;
use super::call_metrics::CallMetrics;
use super::concurrency_limit::Permits;
use super::convert::{self, Bounds, Pages};
use super::grant_delivery::Undelivered;
use super::keep_alive::{KeepAliveContext, KeepAliveStream};
use super::lock_calls::LockCalls;
use super::proto;
use super::proto::lock_service_server::LockService;
use super::request_log::{CallName, bug};
use super::session::{self, SessionContext};
use super::settings::Settings;
use super::several::{self, AcquireAllCall};
use super::status;
use crate::backend::{WatchEvent, clock};
use crate::error::Error;
use crate::name::{LeaseKey, LockName, Metadata, Namespace};
use crate::quota::QuotaUse;
use crate::rpc::path;

/// The locks of all namespaces.
#[derive(Debug)]
pub(super) struct LockApi {
    guarded: GuardedNamespaces,
    calls: LockCalls,
    bounds: Bounds,
    pages: Pages,
    /// For calls that keep leases.
    permits: Arc<Permits>,
    request_bytes: usize,
    sessions: Arc<SessionContext>,
}

impl LockApi {
    /// Serves these namespaces, with answers limited by the settings. The commands of sessions are counted like calls.
    pub(super) fn new(
        guarded: GuardedNamespaces,
        settings: &Settings,
        permits: Arc<Permits>,
        metrics: CallMetrics,
    ) -> Self {
        let bounds = Bounds::of(settings);
        let calls = LockCalls::new(guarded.clone(), bounds);
        let sessions = SessionContext {
            guarded: guarded.clone(),
            calls: calls.clone(),
            permits: Arc::clone(&permits),
            metrics,
            request_bytes: settings.request_bytes,
            response_bytes: settings.response_bytes,
        };
        Self {
            request_bytes: settings.request_bytes,
            permits,
            guarded,
            calls,
            bounds,
            pages: Pages::of(settings),
            sessions: Arc::new(sessions),
        }
    }
}

/// The answer to an Acquire.
fn answer(granted: Result<CountedGrant, Error>) -> Result<Response<proto::AcquireResponse>, Status> {
    let granted = granted.map_err(status::of)?;
    let mut response = Response::new(proto::AcquireResponse {
        lease: Some(convert::lease(granted.lease())),
    });
    response.extensions_mut().insert(Undelivered::new(granted));
    Ok(response)
}

/// The caller and the message of a request.
pub(super) fn caller_and_message<T>(request: Request<T>) -> (Caller, T) {
    let (_, mut extensions, message) = request.into_parts();
    (Caller::of(&mut extensions), message)
}

/// Encodes the events of one WatchLock call.
struct WatchEncoder {
    namespace: Namespace,
    name: LockName,
    bounds: Bounds,
    call: Option<CallName>,
    /// The entry of this watch in the caller's quota.
    _quota: QuotaUse,
}

impl WatchEncoder {
    fn encode(&self, event: Result<WatchEvent, Error>) -> Result<proto::WatchLockResponse, Status> {
        use proto::watch_lock_response::Event;
        let event = match event.map_err(|error| self.failed(error))? {
            WatchEvent::State(queue) => {
                Event::State(convert::lock_state(&self.namespace, &self.name, &queue, self.bounds))
            }
            WatchEvent::Change(change) => Event::Change(convert::change(&change, clock::wall())),
        };
        Ok(proto::WatchLockResponse { event: Some(event) })
    }

    /// A stream's trailers carry no source, so internal errors are logged here.
    fn failed(&self, error: Error) -> Status {
        let status = status::of(error);
        if let (Code::Internal, Some(call)) = (status.code(), &self.call) {
            bug(call, path::WATCH_LOCK, &status);
        }
        status
    }
}

/// The events until `end` is ready, and then its error.
pub(super) fn until<T: 'static>(
    end: impl Future<Output = Error> + Send + 'static,
    mut events: BoxStream<'static, Result<T, Error>>,
) -> impl Stream<Item = Result<T, Error>> + Send {
    let mut end = Some(Box::pin(end));
    stream::poll_fn(move |cx| {
        let Some(pending) = &mut end else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(error) = pending.as_mut().poll(cx) {
            end = None;
            return Poll::Ready(Some(Err(error)));
        }
        events.poll_next_unpin(cx)
    })
}

#[tonic::async_trait]
impl LockService for LockApi {
    /// No async function, which would keep as much for a waiting call as for one that does not wait.
    fn acquire<'own, 'call>(
        &'own self,
        request: Request<proto::AcquireRequest>,
    ) -> BoxFuture<'call, Result<Response<proto::AcquireResponse>, Status>>
    where
        'own: 'call,
    {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let begun = self.calls.to_acquire(caller, Some(&headers), message);
        let begun = begun.and_then(|(namespace, acquire)| {
            if acquire.wait.is_zero() {
                return Ok(namespace.try_acquire(acquire)?.map(answer).boxed());
            }
            Ok(namespace.wait_for(acquire)?.map(answer).boxed())
        });
        begun.unwrap_or_else(|error| ready(Err(status::of(error))).boxed())
    }

    async fn acquire_all(
        &self,
        request: Request<proto::AcquireAllRequest>,
    ) -> Result<Response<proto::AcquireAllResponse>, Status> {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let call = AcquireAllCall::new(&self.guarded, &self.permits, caller, &headers, message);
        let mut granted = call.map_err(status::of)?.run().await.map_err(status::of)?;
        let leases = granted.iter().map(|granted| convert::lease(granted.lease()));
        let mut response = Response::new(proto::AcquireAllResponse {
            leases: leases.collect(),
        });
        if let Some(last) = granted.pop() {
            response.extensions_mut().insert(Undelivered::new(last.with(granted)));
        }
        Ok(response)
    }

    async fn release_all(
        &self,
        request: Request<proto::ReleaseAllRequest>,
    ) -> Result<Response<proto::ReleaseAllResponse>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let call: Option<CallName> = extensions.remove();
        let results = several::release_all(&self.guarded, &caller, call.as_ref(), message.lease_ids).await;
        Ok(Response::new(proto::ReleaseAllResponse {
            results: results.map_err(status::of)?,
        }))
    }

    async fn renew(&self, request: Request<proto::RenewRequest>) -> Result<Response<proto::RenewResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let renewed = self.calls.renew(&caller, message).await;
        renewed.map(Response::new).map_err(status::of)
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let released = self.calls.release(&caller, message).await;
        released.map(Response::new).map_err(status::of)
    }

    async fn update_metadata(
        &self,
        request: Request<proto::UpdateMetadataRequest>,
    ) -> Result<Response<proto::UpdateMetadataResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id).map_err(status::of)?;
        let locks = self.guarded.lease_to_update(&caller, &key).map_err(status::of)?;
        let metadata = Metadata::new(message.metadata).map_err(status::of)?;
        locks.update_metadata(&key, &metadata).await.map_err(status::of)?;
        Ok(Response::new(proto::UpdateMetadataResponse {}))
    }

    async fn get_lock(
        &self,
        request: Request<proto::GetLockRequest>,
    ) -> Result<Response<proto::GetLockResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let shown = self.calls.get_lock(&caller, message).await;
        shown.map(Response::new).map_err(status::of)
    }

    async fn list_locks(
        &self,
        request: Request<proto::ListLocksRequest>,
    ) -> Result<Response<proto::ListLocksResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let locks = self.guarded.to_list(&caller, &message.namespace, &message.prefix);
        let locks = locks.map_err(status::of)?;
        let prefix = convert::prefix(&message.prefix).map_err(status::of)?;
        let page = convert::page(message.page_size, &message.page_token, prefix, self.pages).map_err(status::of)?;
        let page_of_locks = locks.list(prefix, page).await.map_err(status::of)?;
        Ok(Response::new(proto::ListLocksResponse {
            locks: page_of_locks.locks.iter().map(convert::summary).collect(),
            next_page_token: convert::page_token(page_of_locks.next.as_deref()),
        }))
    }

    type WatchLockStream = BoxStream<'static, Result<proto::WatchLockResponse, Status>>;

    async fn watch_lock(
        &self,
        request: Request<proto::WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let watched = self.guarded.to_watch(&caller, &message.namespace, &message.name);
        let (locks, quota) = watched.map_err(status::of)?;
        let name = LockName::new(&message.name).map_err(status::of)?;
        let denied = self
            .guarded
            .clone()
            .until_denied(caller, message.namespace, message.name);
        let encoder = WatchEncoder {
            namespace: locks.namespace().clone(),
            name: name.clone(),
            bounds: self.bounds,
            call: extensions.remove(),
            _quota: quota,
        };
        let events = until(denied, locks.watch(&name)).map(move |event| encoder.encode(event));
        Ok(Response::new(events.boxed()))
    }

    async fn check_token(
        &self,
        request: Request<proto::CheckTokenRequest>,
    ) -> Result<Response<proto::CheckTokenResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let checked = self.calls.check_token(&caller, message).await;
        checked.map(Response::new).map_err(status::of)
    }

    type KeepAliveStream = BoxStream<'static, Result<proto::KeepAliveResponse, Status>>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<proto::KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let (_, mut extensions, requests) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let quota = self.guarded.to_keep(&caller).map_err(status::of)?;
        let context = KeepAliveContext {
            guarded: self.guarded.clone(),
            permits: Arc::clone(&self.permits),
            request_bytes: self.request_bytes,
        };
        let kept = KeepAliveStream::new(context, caller, extensions.remove(), requests, quota);
        Ok(Response::new(kept.messages().boxed()))
    }

    type SessionStream = BoxStream<'static, Result<proto::SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        session::open(Arc::clone(&self.sessions), request).map_err(status::of)
    }
}
