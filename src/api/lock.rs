//! `LockService`: each method is its conversions around one call of [`crate::locks::Locks`].

use std::task::Poll;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use tonic::{Code, Request, Response, Status};

use super::access::{GuardedNamespaces, HeldLease};
use super::authenticate::Caller;
use super::convert::{self, Bounds, Pages};
use super::grant_delivery::Undelivered;
use super::proto;
use super::proto::lock_service_server::LockService;
use super::request_log::{CallName, bug};
use super::settings::Settings;
use super::{deadline, status};
use crate::backend::WatchEvent;
use crate::error::Error;
use crate::name::{LeaseKey, LockName, Namespace};
use crate::quota::QuotaUse;

/// The locks of all namespaces.
#[derive(Debug)]
pub(super) struct LockApi {
    guarded: GuardedNamespaces,
    bounds: Bounds,
    pages: Pages,
}

impl LockApi {
    /// Serves these namespaces, with answers as large as the settings say.
    pub(super) fn new(guarded: GuardedNamespaces, settings: &Settings) -> Self {
        Self {
            guarded,
            bounds: Bounds::of(settings),
            pages: Pages::of(settings),
        }
    }

    /// The lease's key and its namespace.
    fn lease(&self, caller: &Caller, lease_id: &str) -> Result<(HeldLease, LeaseKey), Status> {
        let key = LeaseKey::parse(lease_id).map_err(status::of)?;
        let held = self.guarded.lease(caller, &key).map_err(status::of)?;
        Ok((held, key))
    }
}

/// Who asks, and what for.
fn asked<T>(request: Request<T>) -> (Caller, T) {
    let (_, mut extensions, ask) = request.into_parts();
    (Caller::of(&mut extensions), ask)
}

/// How one WatchLock call shows what is seen.
struct View {
    namespace: Namespace,
    name: LockName,
    bounds: Bounds,
    call: Option<CallName>,
    /// Its place among the caller's streams.
    _taken: QuotaUse,
}

impl View {
    fn show(&self, seen: Result<WatchEvent, Error>) -> Result<proto::WatchLockResponse, Status> {
        use proto::watch_lock_response::Event;
        let event = match seen.map_err(|error| self.failed(error))? {
            WatchEvent::State(queue) => Event::State(convert::lock_state(&self.namespace, &self.name, &queue, self.bounds)),
            WatchEvent::Change(change) => Event::Change(convert::change(&change)),
        };
        Ok(proto::WatchLockResponse { event: Some(event) })
    }

    /// A stream's trailers carry no source, so its bugs are logged here.
    fn failed(&self, error: Error) -> Status {
        let status = status::of(error);
        if let (Code::Internal, Some(call)) = (status.code(), &self.call) {
            bug(call, "/fencepost.v1.LockService/WatchLock", &status);
        }
        status
    }
}

/// What is seen until `end` is ready, and that at last.
fn ended_by(
    end: impl Future<Output = Error> + Send + 'static,
    mut seen: BoxStream<'static, Result<WatchEvent, Error>>,
) -> impl Stream<Item = Result<WatchEvent, Error>> + Send {
    let mut end = Some(Box::pin(end));
    stream::poll_fn(move |cx| {
        let Some(waits) = &mut end else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(error) = waits.as_mut().poll(cx) {
            end = None;
            return Poll::Ready(Some(Err(error)));
        }
        seen.poll_next_unpin(cx)
    })
}

#[tonic::async_trait]
impl LockService for LockApi {
    async fn acquire(
        &self,
        request: Request<proto::AcquireRequest>,
    ) -> Result<Response<proto::AcquireResponse>, Status> {
        let (metadata, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let identity = caller.identity.clone();
        let entrance = self.guarded.to_acquire(caller, &ask.namespace, &ask.name);
        let entrance = entrance.map_err(status::of)?;
        let mut ask = convert::acquire(ask, identity).map_err(status::of)?;
        // Before a deadline shortens it: its bound does not depend on that.
        entrance.limits().wait(ask.wait).map_err(status::of)?;
        ask.wait = deadline::shortened(ask.wait, &metadata);
        drop((metadata, extensions));
        let granted = entrance.acquire(ask).await.map_err(status::of)?;
        let mut response = Response::new(proto::AcquireResponse {
            lease: Some(convert::lease(granted.lease())),
        });
        response.extensions_mut().insert(Undelivered::new(granted));
        Ok(response)
    }

    async fn renew(&self, request: Request<proto::RenewRequest>) -> Result<Response<proto::RenewResponse>, Status> {
        let (caller, ask) = asked(request);
        let (held, key) = self.lease(&caller, &ask.lease_id)?;
        let ttl = convert::ttl(ask.ttl).map_err(status::of)?;
        let lease = held.renew(&key, ttl).await.map_err(status::of)?;
        Ok(Response::new(proto::RenewResponse {
            lease: Some(convert::lease(&lease)),
        }))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        let (caller, ask) = asked(request);
        let (held, key) = self.lease(&caller, &ask.lease_id)?;
        held.release(&key).await.map_err(status::of)?;
        Ok(Response::new(proto::ReleaseResponse {}))
    }

    async fn get_lock(
        &self,
        request: Request<proto::GetLockRequest>,
    ) -> Result<Response<proto::GetLockResponse>, Status> {
        let (caller, ask) = asked(request);
        let locks = self.guarded.to_read(&caller, &ask.namespace, &ask.name);
        let locks = locks.map_err(status::of)?;
        let name = LockName::new(&ask.name).map_err(status::of)?;
        let queue = locks.inspect(&name, self.bounds.claims).await.map_err(status::of)?;
        let lock = convert::lock_state(locks.namespace(), &name, &queue, self.bounds);
        Ok(Response::new(proto::GetLockResponse { lock: Some(lock) }))
    }

    async fn list_locks(
        &self,
        request: Request<proto::ListLocksRequest>,
    ) -> Result<Response<proto::ListLocksResponse>, Status> {
        let (caller, ask) = asked(request);
        let locks = self.guarded.to_list(&caller, &ask.namespace, &ask.prefix);
        let locks = locks.map_err(status::of)?;
        let prefix = convert::prefix(&ask.prefix).map_err(status::of)?;
        let page = convert::page(ask.page_size, &ask.page_token, prefix, self.pages).map_err(status::of)?;
        let listing = locks.list(prefix, page).await.map_err(status::of)?;
        Ok(Response::new(proto::ListLocksResponse {
            locks: listing.locks.iter().map(convert::summary).collect(),
            next_page_token: convert::page_token(listing.next.as_deref()),
        }))
    }

    type WatchLockStream = BoxStream<'static, Result<proto::WatchLockResponse, Status>>;

    async fn watch_lock(
        &self,
        request: Request<proto::WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let (_, mut extensions, ask) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let watched = self.guarded.to_watch(&caller, &ask.namespace, &ask.name);
        let (locks, taken) = watched.map_err(status::of)?;
        let name = LockName::new(&ask.name).map_err(status::of)?;
        let denied = self.guarded.clone().until_denied(caller, ask.namespace, ask.name);
        let view = View {
            namespace: locks.namespace().clone(),
            name: name.clone(),
            bounds: self.bounds,
            call: extensions.remove(),
            _taken: taken,
        };
        let seen = ended_by(denied, locks.watch(&name)).map(move |seen| view.show(seen));
        Ok(Response::new(seen.boxed()))
    }

    async fn check_token(
        &self,
        request: Request<proto::CheckTokenRequest>,
    ) -> Result<Response<proto::CheckTokenResponse>, Status> {
        let (caller, ask) = asked(request);
        let locks = self.guarded.to_read(&caller, &ask.namespace, &ask.name);
        let locks = locks.map_err(status::of)?;
        let (name, token) = convert::lock_and_token(&ask.name, ask.fencing_token).map_err(status::of)?;
        let holder = locks.check(&name, token).await.map_err(status::of)?;
        Ok(Response::new(convert::checked(holder.as_ref())))
    }
}
