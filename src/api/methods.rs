//! The methods of the service in one table: [`Methods`] calls the function of each with the message of its request. A
//! session calls the functions of its commands. Other services are behind the router.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::TryFutureExt;
use futures::future::BoxFuture;
use http::Response;
use http_body_util::BodyExt;
use prost::Message;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::service::Routes;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::authenticate::Caller;
use super::concurrency_limit::BEAT_BYTES;
use super::large_reads::Place;
use super::shared::{Api, Messages};
use super::{keep_alive, proto, session, status};
use crate::error::Error;
use crate::name::LeaseKey;
use crate::rpc::path;

/// The methods, and a router for the calls of other services.
#[derive(Debug, Clone)]
pub(super) struct Methods {
    api: Arc<Api>,
    others: Routes,
}

impl Methods {
    /// The methods of `api`, and the other services.
    pub(super) fn new(api: Api, others: Routes) -> Self {
        let (api, others) = (Arc::new(api), others.prepare());
        Self { api, others }
    }
}

type Answer = BoxFuture<'static, Result<Response<Body>, Infallible>>;

impl Service<http::Request<Body>> for Methods {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let call = Call {
            request_bytes: self.api.request_bytes,
            api: Arc::clone(&self.api),
            request,
        };
        match call.request.uri().path() {
            path::ACQUIRE => call.unary(Api::acquire),
            path::ACQUIRE_ALL => call.unary(Api::acquire_all),
            path::RELEASE_ALL => call.unary(Api::release_all),
            path::RENEW => call.simple(|api, caller, message: proto::RenewRequest| async move {
                api.renew(&caller, LeaseKey::parse(&message.lease_id)?, message.ttl)
                    .await
            }),
            path::RELEASE => call.simple(|api, caller, message: proto::ReleaseRequest| async move {
                let key = LeaseKey::parse(&message.lease_id)?;
                api.release(&caller, key, message.keep_for).await
            }),
            path::GET_LOCK => call.large(|api, caller, message| async move { api.get_lock(&caller, message).await }),
            path::CHECK_TOKEN => {
                call.simple(|api, caller, message| async move { api.check_token(&caller, message).await })
            }
            path::UPDATE_METADATA => call.simple(|api, caller, message| api.update_metadata(caller, None, message)),
            path::LIST_LOCKS => call.large(Api::list_locks),
            path::WATCH_LOCK => call.streaming(Api::watch_lock),
            path::KEEP_ALIVE => call.with_messages_of(BEAT_BYTES).both_streaming(keep_alive::open),
            path::SESSION => call.with_resets().both_streaming(session::open),
            path::CAMPAIGN => call.unary(Api::campaign),
            path::PROCLAIM => call.simple(|api, caller, message| api.proclaim(caller, None, message)),
            path::GET_LEADER => call.simple(Api::get_leader),
            path::OBSERVE => call.streaming(Api::observe),
            path::RESIGN => call.simple(Api::resign),
            path::FORCE_RELEASE => call.simple(Api::force_release),
            path::LIST_NAMESPACES => call.simple(Api::list_namespaces),
            path::ADMIT => call.simple(Api::admit),
            path::LIST_SESSIONS => call.large(Api::list_sessions),
            _ => Box::pin(self.others.call(call.request)),
        }
    }
}

/// A message of a method.
trait Wire: Message + Default + 'static {}

impl<M: Message + Default + 'static> Wire for M {}

/// A method that answers with a stream.
type StreamMethod<M, R> = fn(Arc<Api>, Request<M>) -> Result<tonic::Response<Messages<R>>, Error>;

/// A call of a method.
struct Call {
    api: Arc<Api>,
    request: http::Request<Body>,
    /// The size limit of its messages.
    request_bytes: usize,
}

impl Call {
    /// The same call, whose messages may have at least so many bytes.
    fn with_messages_of(self, bytes: usize) -> Self {
        let request_bytes = self.request_bytes.max(bytes);
        Self { request_bytes, ..self }
    }

    /// The same call, whose messages end with an error if the client resets the stream: the transport would show that as their
    /// end.
    fn with_resets(self) -> Self {
        let request = self.request.map(|body| Body::new(body.map_err(status::with_resets)));
        Self { request, ..self }
    }

    /// Answers with one message, for which the method needs the caller and the message.
    fn simple<M: Wire, R: Wire, F>(
        self,
        method: impl Fn(Arc<Api>, Caller, M) -> F + Copy + Send + Sync + 'static,
    ) -> Answer
    where
        F: Future<Output = Result<R, Error>> + Send + 'static,
    {
        self.unary(move |api, request| {
            let (_, mut extensions, message) = request.into_parts();
            let answered = method(api, Caller::of(&mut extensions), message);
            answered.map_ok(tonic::Response::new).map_err(status::of)
        })
    }

    /// Answers with one message, which keeps its place among the large ones until it is converted, also to JSON.
    fn large<M: Wire, R: Wire, F>(
        self,
        method: impl Fn(Arc<Api>, Caller, M) -> F + Copy + Send + Sync + 'static,
    ) -> Answer
    where
        F: Future<Output = Result<(R, Option<Place>), Error>> + Send + 'static,
    {
        self.unary(move |api, request| {
            let (_, mut extensions, message) = request.into_parts();
            let answered = method(api, Caller::of(&mut extensions), message);
            let kept = |(message, place): (R, Option<Place>)| {
                let mut response = tonic::Response::new(message);
                if let Some(place) = place {
                    response.extensions_mut().insert(Arc::new(place));
                }
                response
            };
            answered.map_ok(kept).map_err(status::of)
        })
    }

    /// Answers with one message.
    fn unary<M: Wire, R: Wire, F>(self, method: impl Fn(Arc<Api>, Request<M>) -> F + Send + Sync + 'static) -> Answer
    where
        F: Future<Output = Result<tonic::Response<R>, Status>> + Send + 'static,
    {
        let (mut grpc, api) = (self.grpc(), self.api);
        let method = service_fn(move |request| method(Arc::clone(&api), request));
        Box::pin(async move { Ok(grpc.unary(method, self.request).await) })
    }

    /// Answers with a stream.
    fn streaming<M: Wire, R: Wire>(self, method: StreamMethod<M, R>) -> Answer {
        let (mut grpc, api) = (self.grpc(), self.api);
        let method = service_fn(move |request| ready(method(Arc::clone(&api), request).map_err(status::of)));
        Box::pin(async move { Ok(grpc.server_streaming(method, self.request).await) })
    }

    /// Answers a stream with a stream.
    fn both_streaming<M: Wire, R: Wire>(self, method: StreamMethod<Streaming<M>, R>) -> Answer {
        let (mut grpc, api) = (self.grpc(), self.api);
        let method = service_fn(move |request| ready(method(Arc::clone(&api), request).map_err(status::of)));
        Box::pin(async move { Ok(grpc.streaming(method, self.request).await) })
    }

    fn grpc<M: Wire, R: Wire>(&self) -> Grpc<ProstCodec<R, M>> {
        Grpc::new(ProstCodec::default())
            .max_decoding_message_size(self.request_bytes)
            .max_encoding_message_size(self.api.response_bytes)
    }
}
