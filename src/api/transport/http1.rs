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
use crate::api::connection::{ClientEnd, Connection};
use crate::api::service::as_inner_body;

/// How long a connection may be idle, and how long the headers of a request may take.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// How long a draining server waits for a connection without a request that is being answered.
const CLOSING_GRACE: Duration = Duration::from_millis(500);
/// The maximum size of the headers of a request, in bytes, as over HTTP/2; a signed token is a few KiB.
const HEADER_BYTES: usize = 16 << 10;
/// The maximum size of each of a connection's buffers, in bytes. The chart computes 32 KiB for a connection.
const BUFFER_BYTES: usize = 16 << 10;
/// How often a connection is looked at whose end is hidden by bytes that lie in its socket.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves a connection until it ends, or until its current request is answered after `closing` or at its `age`. A
/// connection on which only a part of a request has arrived then ends after [`CLOSING_GRACE`].
///
/// When its client sends no more, waits and streams end at once, because almost every such client is gone. Other calls,
/// which end soon, are answered. Waits also end if so much was sent behind them that the end of the client could not be
/// seen.
///
/// # Errors
/// The error with which the connection ended.
///
/// # Cancellation safety
/// If dropped, the connection closes and its call is cancelled.
pub(super) async fn serve<F, B>(
    connection: Connection,
    client_end: Arc<ClientEnd>,
    mut age: Option<Age>,
    closing: CancellationToken,
    answer: impl Fn(Request<Incoming>) -> F,
) -> Result<(), hyper::Error>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin + 'static,
{
    let (usage, ending) = (connection.remote().usage.clone(), connection.remote().ending.clone());
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
        // The end of a client is noticed by `client_end`.
        .half_close(true)
        .max_header_size(HEADER_BYTES)
        .max_buf_size(BUFFER_BYTES)
        // Otherwise the bytes of an answer would count as sent when they are copied into a buffer.
        .writev(true);
    let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let mut closing = pin!(closing.cancelled_owned().fuse());
    let (mut grace, mut next_look) = (Timer::default(), Timer::default());
    std::future::poll_fn(|cx| {
        let is_too_old = age.as_mut().is_some_and(|age| age.poll_over(cx).is_ready());
        if closing.as_mut().poll(cx).is_ready() || is_too_old {
            served.as_mut().graceful_shutdown();
        }
        let ended = ConnectionUsage::step(usage.as_deref(), || served.as_mut().poll(cx));
        let is_answering = ended.is_pending() && answering.strong_count() > 1;
        if client_end.stopped_sending() {
            ending.iter().for_each(CancellationToken::cancel);
        }
        if next_look.poll(cx, is_answering && client_end.is_hidden(), LOOK_INTERVAL) {
            if client_end.is_full() {
                ending.iter().for_each(CancellationToken::cancel);
            }
            cx.waker().wake_by_ref();
        }
        // hyper would wait for the rest of a request's headers.
        let is_unsent = usage.as_ref().is_some_and(|usage| usage.answers.unsent() > 0);
        let is_idle = closing.is_terminated() && answering.strong_count() == 1 && !is_unsent;
        if grace.poll(cx, is_idle && ended.is_pending(), CLOSING_GRACE) {
            return Poll::Ready(Ok(()));
        }
        ended
    })
    .await
}

/// A time that runs only while something is so.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether it has been so for this long.
    fn poll(&mut self, cx: &mut Context<'_>, is_so: bool, limit: Duration) -> bool {
        if !is_so {
            self.0 = None;
            return false;
        }
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep(limit)));
        let is_over = timer.as_mut().poll(cx).is_ready();
        if is_over {
            self.0 = None;
        }
        is_over
    }
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
