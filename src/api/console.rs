//! The console: a page for browsers, over HTTP/1.1.
//!
//! The page is a few static files, and its calls are requests with JSON in their bodies, such as
//! `POST /api/GetLock`. Each of them becomes the gRPC call of that name and passes the same layers as the calls of other
//! clients, so that identities, rules, limits, audit and metrics are the same. The bearer token of a request is in its
//! authorization header. There are no cookies, so a page of another site cannot use the console's identity.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use self::calls::Calls;
use self::overview_permits::OverviewPermits;
use self::response::{ConsoleBody, Responses};
use super::capacity::ConnectionUsage;
use super::connection::{Connection, Remote};
use super::layer::CallService;
use super::serves::Hosts;
use super::settings::Settings;

mod calls;
mod files;
mod json_calls;
mod overview;
mod overview_permits;
mod response;

/// Whether this program contains the console's page: the feature `console`.
pub const HAS_CONSOLE: bool = files::ARE_THERE;

/// How long a connection may be idle, and how long the headers of a request may take.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// How long a draining server waits for a connection without a request that is being answered.
const CLOSING_GRACE: Duration = Duration::from_millis(500);
/// The maximum size of the headers of a request, in bytes; a signed token is a few KiB.
const HEADER_BYTES: usize = 32 << 10;
/// The maximum size of a connection's buffers, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// The prefix of the paths of calls.
const CALLS: &str = "/api/";

/// The server's limits that apply to the console.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    request_bytes: usize,
    page: i32,
    overviews: Arc<OverviewPermits>,
}

impl Limits {
    /// The limits in these settings, with permits that all connections share.
    pub(super) fn of(settings: &Settings) -> Self {
        Self {
            request_bytes: settings.request_bytes,
            page: i32::try_from(settings.page_limit).unwrap_or(i32::MAX),
            overviews: Arc::default(),
        }
    }
}

/// The console on one connection, over a service that executes its calls.
#[derive(Debug, Clone)]
pub(super) struct Console<S> {
    calls: Calls<S>,
    hosts: Arc<Hosts>,
    responses: Responses,
}

impl<S: CallService> Console<S> {
    /// The console for browsers that address the server as one of `hosts`.
    pub(super) fn new(service: S, hosts: Arc<Hosts>, limits: Limits, remote: &Remote) -> Self {
        Self {
            calls: Calls {
                service,
                limits,
                remote: remote.clone(),
            },
            hosts,
            responses: Responses::new(remote),
        }
    }

    /// Serves a connection until it ends, or until its current request is answered after `closing`. A connection on which
    /// only a part of a request has arrived then ends after [`CLOSING_GRACE`].
    ///
    /// # Cancellation safety
    /// If dropped, the connection closes and its call is cancelled.
    pub(super) async fn serve(self, connection: Connection, closing: CancellationToken) {
        let usage = connection.remote().usage.clone();
        // Each request that is being answered has a clone, until its response has been passed on.
        let served_by = Arc::new(());
        let answering = Arc::downgrade(&served_by);
        let service = service_fn(move |request: Request<Incoming>| {
            let (console, answering) = (self.clone(), Arc::clone(&served_by));
            async move {
                let response = console.response(request).await;
                Ok::<_, Infallible>(response.map(|body| body.with(answering)))
            }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_LIMIT)
            .max_header_size(HEADER_BYTES)
            .max_buf_size(BUFFER_BYTES);
        let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
        let mut closing = pin!(closing.cancelled_owned().fuse());
        let mut grace: Option<Pin<Box<Sleep>>> = None;
        let served = std::future::poll_fn(|cx| {
            if closing.as_mut().poll(cx).is_ready() {
                served.as_mut().graceful_shutdown();
            }
            let ended = ConnectionUsage::step(usage.as_deref(), || served.as_mut().poll(cx));
            // hyper would wait for the rest of a request's headers.
            let is_unsent = usage.as_ref().is_some_and(|usage| usage.answers.unsent() > 0);
            if !closing.is_terminated() || answering.strong_count() > 1 || is_unsent {
                grace = None;
            } else if ended.is_pending() {
                let grace = grace.get_or_insert_with(|| Box::pin(sleep(CLOSING_GRACE)));
                return grace.as_mut().poll(cx).map(Ok);
            }
            ended
        });
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection to the console ended");
        }
    }

    async fn response(self, request: Request<Incoming>) -> Response<ConsoleBody> {
        let Some(host) = the_header(request.headers(), HOST) else {
            return self
                .responses
                .refusal(StatusCode::BAD_REQUEST, "one Host header is required");
        };
        if !self.hosts.include(host) {
            let problem = "the console is not served under this name: use an IP address, localhost or console_listen";
            return self.responses.refusal(StatusCode::MISDIRECTED_REQUEST, problem);
        }
        let path = request.uri().path();
        if let Some(name) = path.strip_prefix(CALLS) {
            let name = name.to_owned();
            return match refusal_of_call(&request) {
                Some((status, problem)) => self.responses.refusal(status, problem),
                None => json_calls::response(self.calls, &name, request, &self.responses).await,
            };
        }
        let Some(file) = files::at(path) else {
            return self.responses.refusal(StatusCode::NOT_FOUND, "there is no such page");
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return self
                .responses
                .refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        }
        self.responses.file(file)
    }
}

/// Why a request is no call of the console's own page.
fn refusal_of_call(request: &Request<Incoming>) -> Option<(StatusCode, &'static str)> {
    let headers = request.headers();
    if request.method() != Method::POST {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "only POST"));
    }
    if !is_of_same_origin(headers) {
        return Some((StatusCode::FORBIDDEN, "only the console's own page may call it"));
    }
    // A form of another site cannot send this type, and a script of another site would have to ask first.
    if the_header(headers, CONTENT_TYPE) != Some("application/json") {
        let problem = "the content-type must be application/json";
        return Some((StatusCode::UNSUPPORTED_MEDIA_TYPE, problem));
    }
    None
}

/// The value of a header that is present once.
fn the_header(headers: &HeaderMap, name: impl http::header::AsHeaderName) -> Option<&str> {
    let mut all = headers.get_all(name).iter();
    let only = all.next()?;
    all.next().is_none().then(|| only.to_str().ok()).flatten()
}

/// Whether a request is from a page of this server, or from no page at all.
fn is_of_same_origin(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return false;
    }
    if !headers.contains_key(ORIGIN) {
        return true;
    }
    let authority = the_header(headers, ORIGIN).and_then(|origin| origin.split_once("://"));
    authority.is_some_and(|(_, authority)| the_header(headers, HOST) == Some(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_pages_of_the_same_origin_may_call() {
        let host = ("host", "localhost:50052");
        for allowed in [
            &[host][..],
            &[host, ("origin", "http://localhost:50052")],
            &[host, ("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_of_same_origin(&headers(allowed)), "{allowed:?}");
        }
        for refused in [
            &[host, ("origin", "http://localhost:50053")][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://evil.example")],
            &[
                host,
                ("origin", "http://localhost:50052"),
                ("origin", "http://evil.example"),
            ],
            &[host, ("sec-fetch-site", "cross-site")],
            &[
                host,
                ("sec-fetch-site", "same-site"),
                ("origin", "http://localhost:50052"),
            ],
        ] {
            assert!(!is_of_same_origin(&headers(refused)), "{refused:?}");
        }
    }
}
