//! HTTP/2 on the accepted connections, until the server has drained.
//!
//! tonic's own server gives hyper an executor that makes each call a task, and tasks run in any order. Here the
//! calls of a connection begin in the order in which they came: see [`calls`].

use std::convert::Infallible;
use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Buf;
use futures::stream::{Stream, StreamExt};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use self::calls::Calls;
use self::request::FromClient;
use super::connection::{Connection, LogThrottle};
use super::deadline::{self, Timed};
use super::concurrency_limit::Kind;
use super::settings::Settings;
use crate::metrics::ServerMetrics;

mod calls;
mod request;

/// How long a burst of small calls on one connection may run ahead, in bytes: with the default of
/// 64 KiB, some 2,500 of them end the connection.
pub(super) const CONNECTION_WINDOW: u32 = 16 << 20;
/// How many streams of one connection may be reset before the server has looked at them: as many
/// waiting calls as a client may drop at once, far above the default of 20.
pub(super) const PENDING_RESETS: usize = 20_000;
/// How many streams of one connection the transport may reset by itself, for frames that came after
/// their call was over. It counts over the whole life of a connection, so with the default of 1,024
/// callers that drop calls now and then would lose theirs in the end, and all calls on it.
pub(super) const LOCAL_RESETS: usize = 1_000_000;

/// What all connections are served with.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    settings: Settings,
    figures: Option<ServerMetrics>,
    /// What the log was told of clients that broke the protocol.
    told: Arc<LogThrottle>,
    /// Lets connections end when their calls have.
    closing: CancellationToken,
}

impl Transport {
    /// As the settings say, counted in these metrics.
    pub(super) fn new(settings: &Settings, figures: Option<ServerMetrics>) -> Self {
        Self {
            settings: settings.clone(),
            figures,
            told: Arc::default(),
            closing: CancellationToken::new(),
        }
    }

    /// Serves the connections as they come until `stop` is ready, and then until the last one has ended: each
    /// is told to begin no new calls, and ends with its open ones.
    ///
    /// # Cancellation safety
    /// Dropped, it accepts no more, and open connections go on.
    pub(super) async fn serve<S, B>(
        self,
        connections: impl Stream<Item = Connection>,
        service: S,
        stop: impl Future<Output = ()>,
    ) where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + Unpin,
        B: http_body::Body<Error = Status> + Default + Send + 'static,
        B::Data: Buf + Send,
    {
        let open = TaskTracker::new();
        {
            let (mut connections, mut stop) = (pin!(connections), pin!(stop));
            loop {
                tokio::select! {
                    () = &mut stop => break,
                    Some(connection) = connections.next() => {
                        open.spawn(self.clone().serve_one(connection, service.clone()));
                    }
                }
            }
            // Here the listeners end, so that nobody connects to a server that drains.
        }
        self.closing.cancel();
        open.close();
        open.wait().await;
    }

    async fn serve_one<S, B>(self, connection: Connection, service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + Unpin,
        B: http_body::Body<Error = Status> + Default + Send + 'static,
        B::Data: Buf + Send,
    {
        let remote = connection.remote().clone();
        let mut calls = Calls::default();
        let beginning = calls.beginning();
        let service = service_fn(move |request: Request<Incoming>| {
            let deadline = deadline::of(request.headers());
            let mut request = request.map(|body| Body::new(FromClient::new(body)));
            if Kind::of(request.uri().path()).is_stream()
                && let Some(usage) = &remote.usage
            {
                // A stream that nobody reads ends alone.
                let cut = CancellationToken::new();
                request.extensions_mut().insert(usage.stream(cut.clone()));
                beginning.ended_by(cut);
            }
            request.extensions_mut().insert(remote.clone());
            Timed::new(service.clone().oneshot(request), deadline)
        });
        let mut served = pin!(self.http2(&calls).serve_connection(TokioIo::new(connection), service));
        let mut closing = Some(pin!(self.closing.cancelled()));
        let served = std::future::poll_fn(|cx| {
            if closing
                .as_mut()
                .is_some_and(|closing| closing.as_mut().poll(cx).is_ready())
            {
                closing = None;
                served.as_mut().graceful_shutdown();
            }
            if !calls.begin(cx) {
                return Poll::Pending;
            }
            let ended = served.as_mut().poll(cx);
            // Also of a connection that ends, as many as begin at once: they may be answered to nobody, but they came.
            calls.begin(cx);
            ended
        });
        if let Err(error) = served.await {
            self.ended(&error);
        }
    }

    fn http2(&self, calls: &Calls) -> http2::Builder<calls::CallExecutor> {
        let mut builder = http2::Builder::new(calls.beginning());
        builder
            .timer(TokioTimer::new())
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(self.settings.max_streams_per_connection)
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(LOCAL_RESETS)
            .keep_alive_interval(self.settings.keepalive_interval)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        builder
    }

    /// A client that broke the protocol is counted, and the log says so now and then.
    fn ended(&self, error: &hyper::Error) {
        tracing::debug!(%error, "a connection ended");
        let h2 = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
        let is_broken = h2.is_some_and(|error| error.is_library() && error.reason() != Some(h2::Reason::NO_ERROR));
        if !is_broken {
            return;
        }
        if let Some(figures) = &self.figures {
            figures.protocol_errors.inc();
        }
        if let Some(connections) = self.told.one_more() {
            tracing::warn!(connections, %error, "clients broke HTTP/2: closed their connections");
        }
    }
}
