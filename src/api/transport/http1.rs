//! Serves HTTP/1.1 on a connection: one call after another.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::age::Age;
use crate::api::capacity::ConnectionUsage;
use crate::api::connection::Connection;
use crate::api::service::as_inner_body;

/// How long a connection may be idle, and how long the headers of a request may take.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// How long a draining server waits for a connection without a request that is being answered.
const CLOSING_GRACE: Duration = Duration::from_millis(500);
/// The maximum size of the headers of a request, in bytes; a signed token is a few KiB.
const HEADER_BYTES: usize = 32 << 10;
/// The maximum size of a connection's buffers, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Serves a connection until it ends, or until its current request is answered after `closing` or at its `age`. A
/// connection on which only a part of a request has arrived then ends after [`CLOSING_GRACE`].
///
/// # Errors
/// The error with which the connection ended.
///
/// # Cancellation safety
/// If dropped, the connection closes and its call is cancelled.
pub(super) async fn serve<F, B>(
    connection: Connection,
    mut age: Option<Age>,
    closing: CancellationToken,
    answer: impl Fn(Request<Incoming>) -> F,
) -> Result<(), hyper::Error>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin + 'static,
{
    let usage = connection.remote().usage.clone();
    // Each request that is being answered has a clone, until its response has been passed on.
    let served_by = Arc::new(());
    let answering = Arc::downgrade(&served_by);
    let service = service_fn(move |request: Request<Incoming>| {
        let held = Arc::clone(&served_by);
        let answered = answer(request);
        async move {
            answered
                .await
                .map(|response| response.map(|body| Held { body, _by: held }))
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_header_size(HEADER_BYTES)
        .max_buf_size(BUFFER_BYTES)
        // Otherwise the bytes of an answer would count as sent when they are copied into a buffer.
        .writev(true);
    let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let mut closing = pin!(closing.cancelled_owned().fuse());
    let mut grace: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(|cx| {
        let is_too_old = age.as_mut().is_some_and(|age| age.poll_over(cx).is_ready());
        if closing.as_mut().poll(cx).is_ready() || is_too_old {
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
    })
    .await
}

/// A body, and what its request holds until it has been passed on.
struct Held<B> {
    body: B,
    _by: Arc<()>,
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    as_inner_body!();
}
