//! Serves HTTP/2 and HTTP/1.1 on the accepted connections until the server has drained.
//!
//! tonic's own server gives hyper an executor that spawns a task per call, and tasks run in any order. Here the calls
//! of a connection start in the order in which they arrived: see [`calls`].

use std::convert::Infallible;
use std::error::Error as _;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures::future::Either;
use futures::stream::{Stream, StreamExt};
use futures::{FutureExt, TryFutureExt};
use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tower::ServiceExt;

use self::age::Age;
use self::calls::{CallExecutor, Calls};
use self::request::FromClient;
use super::capacity::{ConnectionUsage, ReceivedBytes};
use super::concurrency_limit::Kind;
use super::connect::{self, AnswerBody, Call};
use super::connection::{Connection, Remote};
use super::console;
use super::deadline::{self, Timed};
use super::log_throttle::LogThrottle;
use super::origins::Origins;
use super::peer::Peer;
use super::serves::Serves;
use super::service::CallService;
use super::settings::Settings;
use crate::metrics::ServerMetrics;
use crate::telemetry::refused_authorities;

mod age;
mod calls;
mod http1;
mod request;

/// The initial flow-control window of a connection, in bytes. With the default of 64 KiB, a burst of about 2,500
/// small calls ends the connection.
pub const CONNECTION_WINDOW: u32 = 16 << 20;
/// The initial flow-control window of a stream, in bytes: what a client may send that its call does not read.
const STREAM_WINDOW: u32 = 64 << 10;
/// How many streams of one connection a client may reset before the server has processed them. It allows a client to
/// drop this many waiting calls at once; the default is 20.
pub const PENDING_RESETS: usize = 20_000;
/// How many streams of one connection the transport may reset because of frames that arrived after the end of their
/// call. The count is over the lifetime of the connection, so with the default of 1,024, callers that occasionally drop
/// calls would eventually lose the connection and all its calls.
pub const LOCAL_RESETS: usize = 1_000_000;

/// The settings and the state that all connections share.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    settings: Settings,
    metrics: Option<ServerMetrics>,
    /// For log lines about clients that violate the protocol.
    throttle: Arc<LogThrottle>,
    /// For log lines about refused requests.
    refused: Arc<LogThrottle>,
    /// The web pages that may make calls.
    origins: Origins,
    /// Cancelled to shut all connections down gracefully.
    closing: CancellationToken,
}

impl Transport {
    /// A transport with these settings and metrics.
    pub(super) fn new(settings: &Settings, metrics: Option<ServerMetrics>) -> Self {
        Self {
            settings: settings.clone(),
            metrics,
            throttle: Arc::default(),
            refused: Arc::default(),
            origins: Origins::new(&settings.cors_origins),
            closing: CancellationToken::new(),
        }
    }

    /// Accepts and serves connections until `stop` is ready. Then it shuts each connection down gracefully, which ends
    /// with its open calls, and returns after the last one has ended.
    ///
    /// # Cancellation safety
    /// If dropped, no further connections are accepted. Open connections continue.
    pub(super) async fn serve<S: CallService>(
        self,
        connections: impl Stream<Item = Connection>,
        service: S,
        stop: impl Future<Output = ()>,
    ) {
        let open = TaskTracker::new();
        {
            let (mut connections, mut stop) = (pin!(connections), pin!(stop));
            loop {
                tokio::select! {
                    () = &mut stop => break,
                    Some(connection) = connections.next() => {
                        drop(open.spawn(self.clone().serve_one(connection, service.clone())));
                    }
                }
            }
            // The listeners are dropped here, so that no client connects to a draining server.
        }
        self.closing.cancel();
        open.close();
        open.wait().await;
    }

    async fn serve_one<S: CallService>(self, mut connection: Connection, service: S) {
        let serves = connection.serves().clone();
        let is_http2 = match serves {
            Serves::Console(_) => false,
            Serves::Calls => match connection.speaks_http2().await {
                Ok(is_http2) => is_http2,
                Err(error) => return tracing::debug!(%error, "a connection ended without a request"),
            },
        };
        let client_end = (!is_http2).then(|| connection.noting_client_end(self.closing.child_token()));
        let remote = connection.remote().clone();
        let age = self.settings.connection_age.zip(remote.draining.clone());
        let age = age.map(|(max, ending)| Age::new(max, self.settings.drain_timeout, ending));
        let door = Door {
            service,
            remote,
            serves,
            origins: self.origins.clone(),
            request_bytes: self.settings.request_bytes,
        };
        let served = match client_end {
            None => self.serve_http2(connection, age, door).await,
            Some(client_end) => {
                let answer = move |request| door.answer(request, None);
                http1::serve(connection, client_end, age, self.closing.clone(), answer).await
            }
        };
        if let Err(error) = served {
            self.note_end(&error);
        }
    }

    async fn serve_http2<S: CallService>(
        &self,
        connection: Connection,
        mut age: Option<Age>,
        door: Door<S>,
    ) -> Result<(), hyper::Error> {
        let (usage, peer) = (door.remote.usage.clone(), door.remote.peer);
        let mut calls = Calls::default();
        let executor = calls.executor();
        let service = service_fn(move |request: Request<Incoming>| door.answer(request, Some(&executor)));
        let mut served = pin!(self.http2(&calls).serve_connection(TokioIo::new(connection), service));
        let mut closing = pin!(self.closing.cancelled().fuse());
        std::future::poll_fn(|cx| {
            let is_too_old = age.as_mut().is_some_and(|age| age.poll_over(cx).is_ready());
            if closing.as_mut().poll(cx).is_ready() || is_too_old {
                served.as_mut().graceful_shutdown();
            }
            if !calls.start(cx) {
                return Poll::Pending;
            }
            ConnectionUsage::step(usage.as_deref(), || {
                let refused = refused_authorities();
                let ended = served.as_mut().poll(cx);
                if refused_authorities() > refused {
                    self.note_refused(peer);
                }
                // Also for a connection that ends: calls that have arrived are executed, even without a reader of the
                // answer.
                calls.start(cx);
                ended
            })
        })
        .await
    }

    fn http2(&self, calls: &Calls) -> http2::Builder<calls::CallExecutor> {
        let mut builder = http2::Builder::new(calls.executor());
        builder
            .timer(TokioTimer::new())
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_concurrent_streams(self.settings.max_streams_per_connection)
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(LOCAL_RESETS)
            .keep_alive_interval(self.settings.keepalive_interval)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        builder
    }

    /// Logs a client whose requests HTTP/2 refuses: it gets no more than a reset stream.
    fn note_refused(&self, newest: Peer) {
        if let Some(refused) = self.refused.one_more() {
            tracing::warn!(
                %newest,
                refused,
                "refused requests with an :authority that is no host: gRPC clients in Python, Ruby, PHP and C++ send one \
                 to unix: and to lists of addresses; let them set the channel argument grpc.default_authority to localhost"
            );
        }
    }

    /// Counts and logs a client that violated the protocol.
    fn note_end(&self, error: &hyper::Error) {
        tracing::debug!(%error, "a connection ended");
        let h2 = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
        if !h2.is_some_and(h2::Error::is_library) && !error.is_parse() {
            return;
        }
        if let Some(metrics) = &self.metrics {
            metrics.protocol_errors.inc();
        }
        if let Some(connections) = self.throttle.one_more() {
            tracing::warn!(connections, %error, "clients violated HTTP: closed their connections");
        }
    }
}

/// Answers the requests of one connection.
struct Door<S> {
    service: S,
    remote: Remote,
    serves: Serves,
    origins: Origins,
    request_bytes: usize,
}

impl<S: CallService> Door<S> {
    /// The answer to a request. The executor ends a stream that its client does not read; without one, the connection ends.
    fn answer(
        &self,
        request: Request<Incoming>,
        executor: Option<&CallExecutor>,
    ) -> impl Future<Output = Result<Response<AnswerBody<S::ResponseBody>>, Infallible>> + Send + use<S> {
        let is_grpc = connect::is_grpc(&request);
        let (mut request, body) = request.into_parts();
        let connection = self.remote.usage.as_ref().map(|usage| Arc::clone(&usage.answers));
        let (kind, received) = (Kind::of(request.uri.path()), ReceivedBytes::new(connection));
        request.extensions.insert(received.by());
        let mut body = FromClient::new(body, kind, received, self.request_bytes);
        // A client of gRPC knows that its call may be answered before it has sent its message.
        let rest = (!is_grpc).then(|| body.rest());
        let request = Request::from_parts(request, Body::new(body));
        let answer = self.answer_to(request, executor);
        let request_bytes = self.request_bytes;
        async move {
            let answer = answer.await;
            if let Some(rest) = rest {
                rest.read(request_bytes).await;
            }
            answer
        }
    }

    fn answer_to(
        &self,
        request: Request<Body>,
        executor: Option<&CallExecutor>,
    ) -> impl Future<Output = Result<Response<AnswerBody<S::ResponseBody>>, Infallible>> + Send + use<S> {
        let is_head = request.method() == Method::HEAD;
        let page = match &self.serves {
            Serves::Calls => self.origins.admit(&request),
            Serves::Console(hosts) => console::admit(hosts, &request).map(Some),
        };
        let admitted = page.and_then(|headers| {
            let call = Call::of(request, &self.remote, self.request_bytes)?;
            Ok((call, headers))
        });
        let usage = self.remote.usage.clone();
        let (mut call, headers) = match admitted {
            Ok(admitted) => admitted,
            Err(mut refusal) => {
                if let Some(usage) = usage {
                    usage.answers.count_headers();
                }
                // Over HTTP/1.1 hyper leaves the body out, and keeps its length in the headers.
                if is_head && executor.is_some() {
                    *refusal.body_mut() = AnswerBody::Whole(None);
                }
                return Either::Left(ready(Ok(*refusal)));
            }
        };
        if let (Some(executor), Some(usage)) = (executor, &usage)
            && Kind::of(call.path()).is_stream()
        {
            // A stream that the client does not read is ended separately.
            let cut = CancellationToken::new();
            call.count_for(usage.stream(cut.clone()));
            executor.end_next_by(cut);
        }
        let service = self.service.clone();
        let answer = call.make(move |request| {
            let deadline = deadline::of(request.headers());
            Timed::new(service.oneshot(request), deadline).inspect_ok(move |response| {
                if let Some(usage) = usage.filter(|_| response.body().is_end_stream()) {
                    usage.answers.count_headers();
                }
            })
        });
        Either::Right(answer.map_ok(|mut response| {
            response.headers_mut().extend(headers.unwrap_or_default());
            response
        }))
    }
}

#[cfg(test)]
mod tests;
