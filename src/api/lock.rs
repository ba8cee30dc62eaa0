//! `LockService`: each method converts its message, calls [`crate::locks::Locks`] once, and
//! converts the outcome.

use std::sync::Arc;
use std::task::Poll;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::access::{CountedGrant, GuardedNamespaces, NamespaceToAcquire};
use super::authenticate::Caller;
use super::call_metrics::CallMetrics;
use super::concurrency_limit::Permits;
use super::convert::{self, Bounds, Pages};
use super::grant_delivery::Undelivered;
use super::keep_alive::KeepAliveStream;
use super::lock_calls::LockCalls;
use super::open_streams::StreamKind;
use super::proto;
use super::proto::lock_service_server::LockService;
use super::request_log::{CallName, logged};
use super::session::{self, StreamContext};
use super::settings::Settings;
use super::several::{self, AcquireAllCall};
use crate::backend::{WatchEvent, clock};
use crate::error::Error;
use crate::locks::Acquire;
use crate::name::{LeaseKey, LockName, Metadata};
use crate::rpc::path;

/// The locks of all namespaces.
#[derive(Debug)]
pub(super) struct LockApi {
    guarded: GuardedNamespaces,
    calls: LockCalls,
    bounds: Bounds,
    pages: Pages,
    streams: Arc<StreamContext>,
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
        let streams = StreamContext {
            guarded: guarded.clone(),
            calls: calls.clone(),
            permits,
            metrics,
            request_bytes: settings.request_bytes,
            response_bytes: settings.response_bytes,
        };
        Self {
            guarded,
            calls,
            bounds,
            pages: Pages::of(settings),
            streams: Arc::new(streams),
        }
    }
}

/// Runs an Acquire or a Campaign that may proceed. No async function, which would keep as much for a waiting call as for
/// one that does not wait.
pub(super) fn acquired<M: Send + 'static>(
    allowed: Result<(NamespaceToAcquire, Acquire), Error>,
    answer: impl FnOnce(Result<CountedGrant, Error>) -> Result<Response<M>, Status> + Copy + Send + 'static,
) -> BoxFuture<'static, Result<Response<M>, Status>> {
    let begun = allowed.and_then(|(namespace, acquire)| {
        if acquire.wait.is_zero() {
            return Ok(namespace.try_acquire(acquire)?.map(answer).boxed());
        }
        Ok(namespace.wait_for(acquire)?.map(answer).boxed())
    });
    begun.unwrap_or_else(|error| ready(answer(Err(error))).boxed())
}

/// The answer to an Acquire or a Campaign.
pub(super) fn answer<M>(
    granted: Result<CountedGrant, Error>,
    message: fn(Option<proto::Lease>) -> M,
) -> Result<Response<M>, Status> {
    let granted = granted?;
    let mut response = Response::new(message(Some(convert::lease(granted.lease()))));
    response.extensions_mut().insert(Undelivered::new(granted));
    Ok(response)
}

/// The caller and the message of a request.
pub(super) fn caller_and_message<T>(request: Request<T>) -> (Caller, T) {
    let (_, mut extensions, message) = request.into_parts();
    (Caller::of(&mut extensions), message)
}

/// The messages about these events until `end` is ready, and then its error. What else it returns is dropped with the
/// stream, which a client that does not read may keep open for a while. `call` and `method` name the stream in the log: its
/// trailers carry no source, so internal errors are logged here.
pub(super) fn messages<T: 'static, P: Send + 'static, M: 'static>(
    (call, method): (Option<CallName>, &'static str),
    end: impl Future<Output = (Error, P)> + Send + 'static,
    mut events: BoxStream<'static, Result<T, Error>>,
    message: impl Fn(T) -> M + Send + 'static,
) -> Response<BoxStream<'static, Result<M, Status>>> {
    let mut end = Ok(Box::pin(end));
    let events = stream::poll_fn(move |cx| {
        let Ok(pending) = &mut end else {
            return Poll::Ready(None);
        };
        if let Poll::Ready((error, permission)) = pending.as_mut().poll(cx) {
            end = Err(permission);
            return Poll::Ready(Some(Err(error)));
        }
        events.poll_next_unpin(cx)
    });
    let messages = events.map(move |event| match event {
        Ok(event) => Ok(message(event)),
        Err(error) => Err(logged(error, call.as_ref(), method)),
    });
    Response::new(messages.boxed())
}

#[tonic::async_trait]
impl LockService for LockApi {
    fn acquire<'own, 'call>(
        &'own self,
        request: Request<proto::AcquireRequest>,
    ) -> BoxFuture<'call, Result<Response<proto::AcquireResponse>, Status>>
    where
        'own: 'call,
    {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let allowed = self.calls.to_acquire(caller, Some(&headers), message);
        acquired(allowed, |granted| {
            answer(granted, |lease| proto::AcquireResponse { lease })
        })
    }

    async fn acquire_all(
        &self,
        request: Request<proto::AcquireAllRequest>,
    ) -> Result<Response<proto::AcquireAllResponse>, Status> {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let call = AcquireAllCall::new(&self.guarded, &self.streams.permits, caller, &headers, message)?;
        let mut granted = call.run().await?;
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
        let results = several::release_all(&self.guarded, &caller, call.as_ref(), message.lease_ids).await?;
        Ok(Response::new(proto::ReleaseAllResponse { results }))
    }

    async fn renew(&self, request: Request<proto::RenewRequest>) -> Result<Response<proto::RenewResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id)?;
        Ok(Response::new(self.calls.renew(&caller, key, message.ttl).await?))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id)?;
        Ok(Response::new(self.calls.release(&caller, key).await?))
    }

    async fn update_metadata(
        &self,
        request: Request<proto::UpdateMetadataRequest>,
    ) -> Result<Response<proto::UpdateMetadataResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let key = LeaseKey::parse(&message.lease_id)?;
        let locks = self.guarded.lease_to_update(&caller, &key)?;
        locks.update_metadata(&key, &Metadata::new(message.metadata)?).await?;
        Ok(Response::new(proto::UpdateMetadataResponse {}))
    }

    async fn get_lock(
        &self,
        request: Request<proto::GetLockRequest>,
    ) -> Result<Response<proto::GetLockResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        Ok(Response::new(self.calls.get_lock(&caller, message).await?))
    }

    async fn list_locks(
        &self,
        request: Request<proto::ListLocksRequest>,
    ) -> Result<Response<proto::ListLocksResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        let locks = self.guarded.to_read(&caller, &message.namespace, &message.prefix)?;
        let prefix = convert::prefix(&message.prefix)?;
        let page = convert::page(message.page_size, &message.page_token, prefix, self.pages)?;
        let page_of_locks = locks.list(prefix, page).await?;
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
        use proto::watch_lock_response::Event;

        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let (locks, permission) = self.guarded.to_watch(caller, &message.namespace, &message.name)?;
        let name = LockName::new(&message.name)?;
        let (stream, events) = ((extensions.remove(), path::WATCH_LOCK), locks.watch(&name));
        let (denied, namespace, bounds) = (
            permission.until_denied(name.clone()),
            locks.namespace().clone(),
            self.bounds,
        );
        Ok(messages(stream, denied, events, move |event| {
            let event = match event {
                WatchEvent::State(queue) => Event::State(convert::lock_state(&namespace, &name, &queue, bounds)),
                WatchEvent::Change(change) => Event::Change(convert::change(&change, clock::wall())),
            };
            proto::WatchLockResponse { event: Some(event) }
        }))
    }

    async fn check_token(
        &self,
        request: Request<proto::CheckTokenRequest>,
    ) -> Result<Response<proto::CheckTokenResponse>, Status> {
        let (caller, message) = caller_and_message(request);
        Ok(Response::new(self.calls.check_token(&caller, message).await?))
    }

    type KeepAliveStream = BoxStream<'static, Result<proto::KeepAliveResponse, Status>>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<proto::KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let (_, mut extensions, requests) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let open = self.guarded.to_keep(StreamKind::KeepAlive, &caller, extensions.get())?;
        let context = Arc::clone(&self.streams);
        let kept = KeepAliveStream::new(context, caller, extensions.remove(), requests, open);
        Ok(Response::new(kept.messages().boxed()))
    }

    type SessionStream = BoxStream<'static, Result<proto::SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Ok(session::open(Arc::clone(&self.streams), request)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{StreamExt, future, stream};

    use super::messages;
    use crate::error::Error;

    #[tokio::test]
    async fn a_watch_that_was_denied_counts_until_its_stream_ends() {
        let counted = Arc::new(());
        let denied = (Error::Superseded, Arc::clone(&counted));
        let call = (None, "/fencepost.v1.LockService/WatchLock");
        let events = stream::pending().boxed();
        let mut messages = messages(call, future::ready(denied), events, |(): ()| ()).into_inner();
        assert!(messages.next().await.is_some_and(|message| message.is_err()));
        assert!(messages.next().await.is_none());
        assert_eq!(Arc::strong_count(&counted), 2, "the client may not have read its end");
        drop(messages);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
