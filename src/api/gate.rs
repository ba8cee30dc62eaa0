//! The gate: how many calls of each kind are under way, and which still come in while the server
//! drains.
//!
//! The kinds are counted apart, so that neither thousands of waiting Acquires nor looks at a store
//! that hangs keep a Renew or a Release out, nor what is open to those who are nobody the calls of those who
//! are somebody. And a call has its place from its head on, so its message must come soon.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

use self::body::{Passed, Stay, soon, until_drain};
use super::settings::Settings;
use super::status;
use crate::error::Error;

mod body;

/// What kind of call a method is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may wait as long as its caller likes.
    Acquire,
    /// It goes on until one side ends it.
    Stream,
    /// It lets clients finish with what they hold.
    Finishing,
    /// It asks whether the server serves, perhaps for nobody.
    Health,
    /// It is a stream of health or reflection, perhaps for nobody.
    OpenStream,
    /// The same, and its caller may say more as it goes on.
    Dialogue,
    /// It is short.
    Other,
}

impl Kind {
    /// The kind of the method at a path such as `/fencepost.v1.LockService/Acquire`.
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/fencepost.v1.LockService/Acquire" => Self::Acquire,
            "/fencepost.v1.LockService/Renew" | "/fencepost.v1.LockService/Release" => Self::Finishing,
            "/fencepost.v1.LockService/WatchLock" => Self::Stream,
            "/grpc.health.v1.Health/Check" => Self::Health,
            "/grpc.health.v1.Health/Watch" => Self::OpenStream,
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Self::Dialogue,
            _ => Self::Other,
        }
    }

    /// Whether it ends when the server drains, whatever it still has to say.
    fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::OpenStream | Self::Dialogue)
    }

    /// Whether it is let in while the server drains.
    fn finishes(self) -> bool {
        matches!(self, Self::Finishing | Self::Health)
    }

    /// What an overloaded server says that it has too many of.
    fn word(self) -> &'static str {
        match self {
            Self::Acquire => "too many Acquire calls are open",
            Self::Stream | Self::OpenStream | Self::Dialogue => "too many streams are open",
            Self::Finishing | Self::Health | Self::Other => "too many calls are open",
        }
    }
}

/// The permits of all calls, and whether the server drains.
#[derive(Debug)]
pub(super) struct Permits {
    acquires: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    open_streams: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    finishing: Arc<Semaphore>,
    health: Arc<Semaphore>,
    drain: CancellationToken,
}

impl Permits {
    /// As many as the settings allow, until `drain` begins.
    pub(super) fn new(settings: &Settings, drain: CancellationToken) -> Self {
        let permits = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self {
            acquires: permits(settings.max_acquires),
            streams: permits(settings.max_streams),
            open_streams: permits(settings.max_streams),
            calls: permits(settings.max_calls),
            finishing: permits(settings.max_calls),
            health: permits(settings.max_calls),
            drain,
        }
    }

    fn admit(&self, kind: Kind) -> Result<OwnedSemaphorePermit, Error> {
        if !kind.finishes() && self.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        let permits = match kind {
            Kind::Acquire => &self.acquires,
            Kind::Stream => &self.streams,
            Kind::OpenStream | Kind::Dialogue => &self.open_streams,
            Kind::Finishing => &self.finishing,
            Kind::Health => &self.health,
            Kind::Other => &self.calls,
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

impl<S, B> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Unpin,
    B: Default,
{
    type Response = Response<Passed<B>>;
    type Error = S::Error;
    type Future = GateFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let kind = Kind::of(request.uri().path());
        let permit = match self.permits.admit(kind) {
            Ok(permit) => permit,
            Err(refused) => return GateFuture::Refused(refused),
        };
        let until = kind.is_stream().then_some(&self.permits.drain);
        let request = match kind {
            Kind::Dialogue => until_drain(request, &self.permits.drain),
            Kind::Stream | Kind::OpenStream => until_drain(soon(request), &self.permits.drain),
            _ => soon(request),
        };
        GateFuture::Open {
            inner: self.inner.call(request),
            stay: Some(Stay::new(permit, until)),
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
                Poll::Ready(answered.map(|response| response.map(|body| Passed::new(body, stay))))
            }
        }
    }
}

#[cfg(test)]
mod tests;
