//! The monitoring port, over HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for orchestrators.
//!
//! It has a port of its own, so that it answers under any load and during a drain. It supports little: few connections,
//! one response per connection, GET and HEAD only.
//!
//! A server is not ready before the store of each namespace has served, or was in quarantine, once. After that, a
//! server stays ready while its store is unreachable or in quarantine, unless `ready_namespaces` names the
//! namespace: the store is unreachable for all replicas, and a service without any ready server says less than
//! UNAVAILABLE with a reason. The body of `/readyz` and the log name it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use humantime::format_duration;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::api::ListenAddress;
use crate::backend::{Health, whole_seconds};
use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, Metrics};
use crate::namespaces::Namespaces;
use crate::supervisor::supervised;
use crate::tls::{Purpose, Tls};

/// The maximum number of open connections; above it the oldest one is closed.
const MAX_CONNECTIONS: usize = 64;
/// The time limit of a connection, from its handshake to the last byte of its response.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(30);
/// The minimum time that a connection gets before it may be closed for a newer one, so that concurrent connections are
/// all served.
const MIN_CONNECTION_TIME: Duration = Duration::from_millis(100);
/// The time limit for a request's headers.
const MAX_HEADER_TIME: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The namespaces that must serve for the server to be ready. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Ready(Arc<ArcSwap<Vec<String>>>);

impl Ready {
    /// Replaces the namespaces.
    pub fn set(&self, namespaces: &[String]) {
        self.0.store(Arc::new(namespaces.to_vec()));
    }
}

/// A bound monitoring port.
#[derive(Debug)]
pub struct Monitor {
    listener: TcpListener,
    tls: Option<Tls>,
}

/// The sources of the responses.
#[derive(Debug, Clone)]
struct MonitorState {
    metrics: Metrics,
    namespaces: Namespaces,
    ready: Ready,
}

impl Monitor {
    /// Binds an address.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::Unsupported`] for a Unix socket.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp { host, port } => Ok(Self {
                listener: TcpListener::bind((host.as_str(), *port)).await?,
                tls: None,
            }),
            ListenAddress::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Enables TLS.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// The URL scheme: `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The bound address, with the port that the system chose.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then closes all connections.
    pub async fn run(self, metrics: Metrics, namespaces: Namespaces, ready: Ready, stop: CancellationToken) {
        let state = MonitorState {
            metrics,
            namespaces,
            ready,
        };
        let mut connections = Connections::default();
        let accepting = (&self, &state, &mut connections);
        let accepting = supervised(
            "monitor",
            accepting,
            |_, _| (),
            |(monitor, state, connections)| monitor.accept(state, connections).boxed(),
        );
        stop.run_until_cancelled(accepting).await;
        connections.open.shutdown().await;
    }

    async fn accept(&self, state: &MonitorState, connections: &mut Connections) {
        loop {
            let stream = accepted(&self.listener).await;
            connections.make_slot().await;
            connections.spawn(state.clone().serve_socket(stream, self.tls.clone()));
        }
    }
}

/// The open connections, each in a task of its own. Above the limit the oldest one is closed after its minimum time,
/// because a response takes only milliseconds. Dropping this closes all.
#[derive(Debug, Default)]
struct Connections {
    open: JoinSet<()>,
    /// In the order of their arrival.
    by_age: VecDeque<(Instant, AbortHandle)>,
}

impl Connections {
    /// Waits until there is a free slot, or closes the oldest connection.
    async fn make_slot(&mut self) {
        while self.open.try_join_next().is_some() {}
        self.by_age.retain(|(_, connection)| !connection.is_finished());
        if self.by_age.len() < MAX_CONNECTIONS {
            return;
        }
        let Some((since, oldest)) = self.by_age.pop_front() else {
            return;
        };
        tokio::select! {
            _ = self.open.join_next() => self.by_age.push_front((since, oldest)),
            () = sleep_until(since + MIN_CONNECTION_TIME) => oldest.abort(),
        }
    }

    fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.by_age.push_back((Instant::now(), self.open.spawn(connection)));
    }
}

async fn accepted(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to metrics_listen");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl MonitorState {
    async fn serve_socket(self, socket: TcpStream, tls: Option<Tls>) {
        let Some(tls) = tls else {
            return self.serve_stream(socket).await;
        };
        match tls.handshake(socket, Purpose::Monitoring).await {
            Ok(stream) => self.serve_stream(stream).await,
            Err(unfinished) => {
                let server_metrics = self.metrics.server();
                server_metrics.handshakes_refused.count(unfinished.as_str());
            }
        }
    }

    async fn serve_stream(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send) {
        let routes = self.routes();
        let respond = service_fn(|request: Request<Incoming>| routes.clone().oneshot(request));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(MAX_HEADER_TIME)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), respond);
        // Errors are expected: the client may disconnect, send nothing or exceed the time limit.
        let _ = timeout(MAX_CONNECTION_TIME, connection).await;
    }

    fn routes(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .fallback(|| async { (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n") })
            .method_not_allowed_fallback(|| async { (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n") })
            .with_state(self)
    }

    /// A line, if the namespace does not serve. The reason is left out, because everybody may read it.
    fn trouble(&self, namespace: &str) -> Option<String> {
        let health = self
            .namespaces
            .get(namespace)
            .map(|locks| locks.health().borrow().clone());
        match health {
            Ok(Health::Serving) => None,
            Ok(Health::Quarantined { until, .. }) => {
                let left = format_duration(whole_seconds(until.saturating_duration_since(Instant::now())));
                Some(format!(
                    "{namespace} grants nothing for another {left}: fencepost admit {namespace}\n"
                ))
            }
            Ok(Health::Unavailable { .. }) | Err(_) => Some(format!("{namespace} does not serve\n")),
        }
    }
}

async fn metrics(State(state): State<MonitorState>) -> Response {
    state.namespaces.observe();
    let draining = i64::from(state.namespaces.is_draining());
    state.metrics.server().draining.set(draining);
    match state.metrics.text() {
        Ok(body) => ([(CONTENT_TYPE, METRICS_TYPE)], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be encoded");
            (StatusCode::INTERNAL_SERVER_ERROR, "see the log\n").into_response()
        }
    }
}

async fn ready(State(state): State<MonitorState>) -> (StatusCode, String) {
    if state.namespaces.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into());
    }
    let waits_for = state.namespaces.not_yet_served();
    if !waits_for.is_empty() {
        let lines = waits_for
            .iter()
            .map(|name| format!("{name} has not served since the start\n"));
        return (StatusCode::SERVICE_UNAVAILABLE, lines.collect());
    }
    let needed = state.ready.0.load();
    let missing: String = needed.iter().filter_map(|name| state.trouble(name)).collect();
    if !missing.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, missing);
    }
    let all = state.namespaces.all();
    let others: String = all
        .iter()
        .filter_map(|one| state.trouble(one.namespace().as_str()))
        .collect();
    (StatusCode::OK, format!("ready\n{others}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::supervisor::{failpoint, restarts};

    // G188
    #[tokio::test]
    async fn after_a_panic_the_port_answers_again() {
        let monitor = Monitor::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = monitor.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (metrics, namespaces) = (Metrics::new("1"), Namespaces::default());
        let running = tokio::spawn(monitor.run(metrics, namespaces, Ready::default(), stop.clone()));
        let panics = || restarts().get("monitor").copied();
        for expected in [None, Some(1)] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("ok\n"), "{answer}");
            assert_eq!(panics(), expected);
            failpoint::panic_all();
        }
        stop.cancel();
        timeout(Duration::from_secs(30), running)
            .await
            .expect("it ends")
            .unwrap();
    }
}
