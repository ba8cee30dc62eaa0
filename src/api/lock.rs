//! `LockService`: each method asks `access`, converts its message, calls [`crate::locks::Locks`] once, and converts the
//! outcome.

use std::sync::Arc;
use std::task::Poll;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, StreamExt};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::access::{CountedGrant, NamespaceToAcquire};
use super::authenticate::Caller;
use super::grant_delivery::Undelivered;
use super::large_reads::Place;
use super::request_log::{CallName, logged};
use super::several::{self, AcquireAllCall};
use super::shared::{Api, Messages};
use super::{convert, deadline, proto, status};
use crate::backend::{WatchEvent, clock};
use crate::error::Error;
use crate::locks::{Acquire, SessionStream};
use crate::name::{Identity, InvalidField, LeaseKey, LockName, Metadata, Owner, RequestId};
use crate::rpc::path;

/// How many claims of a lock are converted without a place among the large reads.
const FEW_CLAIMS: usize = 32;

/// Runs an Acquire or a Campaign that may proceed, whose answer is this message. No async function, which would keep as
/// much for a waiting call as for one that does not wait.
pub(super) fn acquired<M: Send + 'static>(
    allowed: Result<(NamespaceToAcquire, Acquire), Error>,
    message: fn(Option<proto::Lease>) -> M,
) -> BoxFuture<'static, Result<Response<M>, Status>> {
    let answer = move |granted: Result<CountedGrant, Error>| {
        let granted = granted.map_err(status::of)?;
        let mut response = Response::new(message(Some(convert::lease(granted.lease()))));
        response.extensions_mut().insert(Undelivered::new([granted]));
        Ok(response)
    };
    let begun = allowed.and_then(|(namespace, acquire)| {
        if acquire.wait.is_zero() {
            return Ok(namespace.try_acquire(acquire)?.map(answer).boxed());
        }
        Ok(namespace.wait_for(acquire)?.map(answer).boxed())
    });
    begun.unwrap_or_else(|error| ready(Err(status::of(error))).boxed())
}

/// The messages about these events until `end` is ready, and then its error. What else it returns is dropped with the
/// stream, which a client that does not read may keep open for a while. `call` and `method` name the stream in the log: its
/// trailers carry no source, so internal errors are logged here.
pub(super) fn messages<T: 'static, P: Send + 'static, M: 'static>(
    (call, method): (Option<CallName>, &'static str),
    end: impl Future<Output = (Error, P)> + Send + 'static,
    mut events: BoxStream<'static, Result<T, Error>>,
    message: impl Fn(T) -> M + Send + 'static,
) -> Response<Messages<M>> {
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

impl Api {
    /// The namespace and the parameters of an Acquire.
    pub(super) fn to_acquire(
        &self,
        caller: Caller,
        headers: Option<&MetadataMap>,
        message: proto::AcquireRequest,
    ) -> Result<(NamespaceToAcquire, Acquire), Error> {
        self.to_acquire_as(caller, headers, message, convert::acquire)
    }

    /// [`Self::to_acquire`] with other parameters. The deadline in the headers of its call shortens the wait.
    pub(super) fn to_acquire_as(
        &self,
        caller: Caller,
        headers: Option<&MetadataMap>,
        message: proto::AcquireRequest,
        parameters: impl FnOnce(proto::AcquireRequest, Identity) -> Result<Acquire, InvalidField>,
    ) -> Result<(NamespaceToAcquire, Acquire), Error> {
        let identity = caller.identity.clone();
        let namespace = self.guarded.to_acquire(caller, &message.namespace, &message.name)?;
        let mut acquire = parameters(message, identity)?;
        // Checked before the deadline shortens it: the limit does not depend on the deadline.
        namespace.limits().wait(acquire.wait)?;
        if let Some(headers) = headers {
            acquire.wait = deadline::shortened(acquire.wait, headers);
        }
        Ok((namespace, acquire))
    }

    pub(super) fn acquire(
        self: Arc<Self>,
        request: Request<proto::AcquireRequest>,
    ) -> BoxFuture<'static, Result<Response<proto::AcquireResponse>, Status>> {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let allowed = self.to_acquire(caller, Some(&headers), message);
        acquired(allowed, |lease| proto::AcquireResponse { lease })
    }

    pub(super) async fn acquire_all(
        self: Arc<Self>,
        request: Request<proto::AcquireAllRequest>,
    ) -> Result<Response<proto::AcquireAllResponse>, Status> {
        let (headers, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let call = AcquireAllCall::new(&self.guarded, &self.permits, caller, &headers, message).map_err(status::of)?;
        let granted = call.run().await.map_err(status::of)?;
        let leases = granted.iter().map(|granted| convert::lease(granted.lease()));
        let mut response = Response::new(proto::AcquireAllResponse {
            leases: leases.collect(),
        });
        response.extensions_mut().insert(Undelivered::new(granted));
        Ok(response)
    }

    pub(super) async fn release_all(
        self: Arc<Self>,
        request: Request<proto::ReleaseAllRequest>,
    ) -> Result<Response<proto::ReleaseAllResponse>, Status> {
        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let call: Option<CallName> = extensions.remove();
        let results = several::release_all(&self.guarded, &caller, call.as_ref(), message.lease_ids).await;
        let results = results.map_err(status::of)?;
        Ok(Response::new(proto::ReleaseAllResponse { results }))
    }

    /// Renews a lease. If dropped, the lease may have been renewed.
    pub(super) async fn renew(
        &self,
        caller: &Caller,
        key: LeaseKey,
        ttl: Option<prost_types::Duration>,
    ) -> Result<proto::RenewResponse, Error> {
        let locks = self.guarded.lease(caller, &key)?;
        let lease = locks.renew(&key, convert::ttl(ttl)?).await?;
        let lease = Some(convert::lease(&lease));
        Ok(proto::RenewResponse { lease })
    }

    /// Releases a lease, after which its lock may stay taken. If dropped, the lease may have been released.
    pub(super) async fn release(
        &self,
        caller: &Caller,
        key: LeaseKey,
        keep_for: Option<prost_types::Duration>,
    ) -> Result<proto::ReleaseResponse, Error> {
        let locks = self.guarded.lease(caller, &key)?;
        let kept = locks.release_keeping(&key, convert::keep_for(keep_for)?).await?;
        let kept_for = kept.map(convert::wire_duration);
        Ok(proto::ReleaseResponse { kept_for })
    }

    pub(super) async fn update_metadata(
        self: Arc<Self>,
        caller: Caller,
        stream: Option<Arc<SessionStream>>,
        message: proto::UpdateMetadataRequest,
    ) -> Result<proto::UpdateMetadataResponse, Error> {
        let key = LeaseKey::parse(&message.lease_id)?;
        let locks = self.guarded.lease_to_update(&caller, &key)?;
        let metadata = Metadata::new(message.metadata)?;
        locks.update_metadata_on(stream.as_deref(), &key, &metadata).await?;
        Ok(proto::UpdateMetadataResponse {})
    }

    /// Takes out what a request of a session has. If dropped, it may have been taken out.
    pub(super) async fn cancel_request(
        &self,
        caller: &Caller,
        stream: &SessionStream,
        request: &proto::session_command::RequestToCancel,
    ) -> Result<(), Error> {
        let locks = self.guarded.to_cancel(caller, &request.namespace, &request.name)?;
        let (name, owner) = (LockName::new(&request.name)?, Owner::new(&request.owner)?);
        let request_id = RequestId::new(&request.request_id)?;
        locks.cancel_request(stream, (&name, &owner), &request_id).await
    }

    /// The state of a lock, with a place among the large reads for a queue that is long.
    pub(super) async fn get_lock(
        &self,
        caller: &Caller,
        message: proto::GetLockRequest,
    ) -> Result<(proto::GetLockResponse, Option<Place>), Error> {
        let locks = self.guarded.to_read(caller, &message.namespace, &message.name)?;
        let name = LockName::new(&message.name)?;
        let (mut queue, mut place) = (locks.inspect(&name, FEW_CLAIMS).await?, None);
        if queue.holder_count + queue.waiter_count > FEW_CLAIMS {
            let read = locks.inspect(&name, self.bounds.claims);
            let (all, converting) = self.large_reads.read(locks.namespace(), caller, read).await?;
            (queue, place) = (all, Some(converting));
        }
        let lock = convert::lock_state(locks.namespace(), &name, &queue, self.bounds);
        Ok((proto::GetLockResponse { lock: Some(lock) }, place))
    }

    pub(super) async fn list_locks(
        self: Arc<Self>,
        caller: Caller,
        message: proto::ListLocksRequest,
    ) -> Result<(proto::ListLocksResponse, Option<Place>), Error> {
        let locks = self.guarded.to_read(&caller, &message.namespace, &message.prefix)?;
        let prefix = convert::prefix(&message.prefix)?;
        let page = convert::page(message.page_size, &message.page_token, prefix, self.pages)?;
        let read = locks.list(prefix, page);
        let (page_of_locks, place) = self.large_reads.read(locks.namespace(), &caller, read).await?;
        self.guarded.count_page(&caller, &locks, page_of_locks.locks.len());
        let page = proto::ListLocksResponse {
            locks: page_of_locks.locks.iter().map(convert::summary).collect(),
            next_page_token: convert::page_token(page_of_locks.next.as_deref()),
        };
        Ok((page, Some(place)))
    }

    pub(super) fn watch_lock(
        self: Arc<Self>,
        request: Request<proto::WatchLockRequest>,
    ) -> Result<Response<Messages<proto::WatchLockResponse>>, Error> {
        use proto::watch_lock_response::Event;

        let (_, mut extensions, message) = request.into_parts();
        let caller = Caller::of(&mut extensions);
        let turns = self.large_reads.turns_of(&caller);
        let (locks, permission) = self.guarded.to_watch(caller, &message.namespace, &message.name)?;
        let name = LockName::new(&message.name)?;
        let (stream, events) = ((extensions.remove(), path::WATCH_LOCK), locks.watch(&name));
        let (denied, namespace) = (permission.until_denied(name.clone()), locks.namespace().clone());
        let mut response = messages(stream, denied, events, move |event| {
            let event = match event {
                WatchEvent::State(queue) => Event::State(convert::lock_state(&namespace, &name, &queue, self.bounds)),
                WatchEvent::Change(change) => Event::Change(convert::change(&change, clock::wall())),
            };
            proto::WatchLockResponse { event: Some(event) }
        });
        response.extensions_mut().insert(turns);
        Ok(response)
    }

    pub(super) async fn check_token(
        &self,
        caller: &Caller,
        message: proto::CheckTokenRequest,
    ) -> Result<proto::CheckTokenResponse, Error> {
        let locks = self.guarded.to_read(caller, &message.namespace, &message.name)?;
        let (name, token) = convert::lock_and_token(&message.name, message.fencing_token)?;
        let holder = locks.check(&name, token).await?;
        Ok(convert::checked(holder.as_ref()))
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
