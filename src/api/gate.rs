//! The gate: how many calls of each kind are under way, and which still come in while the server
//! drains.
//!
//! The kinds are counted apart, so that thousands of waiting Acquires never keep a Renew or a
//! Release out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tower::Service;

use super::settings::Settings;
use super::status;
use crate::error::Error;

/// What kind of call a method is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may wait as long as its caller likes.
    Acquire,
    /// It goes on until one side ends it.
    Stream,
    /// It lets clients finish with what they hold, or asks whether the server serves.
    Finishing,
    /// It is short.
    Other,
}

impl Kind {
    /// The kind of the method at a path such as `/fencepost.v1.LockService/Acquire`.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/fencepost.v1.LockService/Acquire" => Self::Acquire,
            "/fencepost.v1.LockService/Renew"
            | "/fencepost.v1.LockService/Release"
            | "/grpc.health.v1.Health/Check" => Self::Finishing,
            "/fencepost.v1.LockService/WatchLock"
            | "/grpc.health.v1.Health/Watch"
            | "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Self::Stream,
            _ => Self::Other,
        }
    }

    /// What an overloaded server says that it has too many of.
    fn word(self) -> &'static str {
        match self {
            Self::Acquire => "too many Acquire calls are open",
            Self::Stream => "too many streams are open",
            Self::Finishing | Self::Other => "too many calls are open",
        }
    }
}

/// The permits of all calls, and whether the server drains.
#[derive(Debug)]
pub(super) struct Permits {
    acquires: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    drain: CancellationToken,
}

impl Permits {
    /// As many as the settings allow, until `drain` begins.
    pub(super) fn new(settings: &Settings, drain: CancellationToken) -> Self {
        let permits = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self {
            acquires: permits(settings.max_acquires),
            streams: permits(settings.max_streams),
            calls: permits(settings.max_calls),
            drain,
        }
    }

    fn admit(&self, kind: Kind) -> Result<OwnedSemaphorePermit, Error> {
        if kind != Kind::Finishing && self.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        let permits = match kind {
            Kind::Acquire => &self.acquires,
            Kind::Stream => &self.streams,
            Kind::Finishing | Kind::Other => &self.calls,
        };
        permits.clone().try_acquire_owned().map_err(|_| Error::Overloaded {
            what: kind.word().into(),
        })
    }
}

/// Lets calls in to `inner` as long as there are permits.
#[derive(Debug, Clone)]
pub(super) struct Gate<S> {
    inner: S,
    permits: Arc<Permits>,
}

impl<S> Gate<S> {
    /// A gate before `inner`.
    pub(super) fn new(inner: S, permits: Arc<Permits>) -> Self {
        Self { inner, permits }
    }
}

impl<S, R, B> Service<Request<R>> for Gate<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
    B: Default,
{
    type Response = Response<Passed<B>>;
    type Error = S::Error;
    type Future = GateFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let kind = Kind::of(request.uri().path());
        match self.permits.admit(kind) {
            Err(refused) => GateFuture::Refused(refused),
            Ok(permit) => GateFuture::Open {
                inner: self.inner.call(request),
                stay: Some(Stay {
                    until: (kind == Kind::Stream).then(|| Box::pin(self.permits.drain.clone().cancelled_owned())),
                    _permit: permit,
                }),
            },
        }
    }
}

/// A call at the gate.
#[derive(Debug)]
pub(super) enum GateFuture<F> {
    /// It was not let in.
    Refused(Error),
    /// It is under way.
    Open {
        /// The call.
        inner: F,
        /// What it holds until it is over.
        stay: Option<Stay>,
    },
}

/// A place behind the gate.
#[derive(Debug)]
pub(super) struct Stay {
    /// When a stream has to end, whatever it still has to say.
    until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _permit: OwnedSemaphorePermit,
}

impl<F, B, E> Future for GateFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
    B: Default,
{
    type Output = Result<Response<Passed<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Refused(refused) => Poll::Ready(Ok(status::of(refused.clone()).into_http())),
            Self::Open { inner, stay } => {
                let answered = ready!(Pin::new(inner).poll(cx));
                let stay = stay.take();
                Poll::Ready(answered.map(|response| response.map(|body| Passed { body, stay })))
            }
        }
    }
}

/// The body of a call that was let in: its place is free again when it ends, and a stream ends with
/// DRAINING when the server drains.
#[derive(Debug, Default)]
pub(super) struct Passed<B> {
    body: B,
    stay: Option<Stay>,
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Passed<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // The stream itself comes first: it may have a last word of its own.
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
        }
        let until = self.stay.as_mut().and_then(|stay| stay.until.as_mut());
        let Some(Poll::Ready(())) = until.map(|until| until.as_mut().poll(cx)) else {
            return Poll::Pending;
        };
        self.stay = None;
        Poll::Ready(Some(trailers(&status::of(Error::Draining))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut headers = http::HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(Frame::trailers(headers))
}

#[cfg(test)]
mod tests;
