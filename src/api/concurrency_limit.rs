//! The gate: how many calls of each kind are under way, and which still come in while the server
//! drains.
//!
//! The kinds are counted apart, so that neither thousands of waiting Acquires nor looks at a store
//! that hangs keep a Renew or a Release out, nor what is open to those who are nobody the calls of those who
//! are somebody. Of each kind one identity and one peer address have their share alone. A call has its place from
//! its head on, so its message must come soon, and until its answer is made, however late its client takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::body::Body;
use tower::Service;

use self::body::{PermitBody, CallPermit, soon, until_drain};
pub(super) use self::permits::Permits;
use super::authenticate::Caller;
use super::capacity::{Answers, ChargeTo};
use super::status;
use crate::error::Error;

mod body;
mod permits;

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
    BidiStream,
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
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Self::BidiStream,
            _ => Self::Other,
        }
    }

    /// Whether it ends when the server drains, whatever it still has to say.
    pub(super) fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::OpenStream | Self::BidiStream)
    }

    /// Whether it is let in while the server drains.
    fn finishes(self) -> bool {
        matches!(self, Self::Finishing | Self::Health)
    }

    /// What an overloaded server says that it has too many of.
    fn word(self) -> &'static str {
        match self {
            Self::Acquire => "too many Acquire calls are open",
            Self::Stream | Self::OpenStream | Self::BidiStream => "too many streams are open",
            Self::Finishing | Self::Health | Self::Other => "too many calls are open",
        }
    }
}

/// Lets calls in to `inner` as long as there are permits.
#[derive(Debug, Clone)]
pub(super) struct ConcurrencyLimit<S> {
    inner: S,
    permits: Arc<Permits>,
}

impl<S> ConcurrencyLimit<S> {
    /// A gate before `inner`.
    pub(super) fn new(inner: S, permits: Arc<Permits>) -> Self {
        Self { inner, permits }
    }
}

impl<S, B> Service<Request<Body>> for ConcurrencyLimit<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Unpin,
    B: Default,
{
    type Response = Response<PermitBody<B>>;
    type Error = S::Error;
    type Future = ConcurrencyLimitFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let kind = Kind::of(request.uri().path());
        let caller = request.extensions().get::<Caller>();
        let permit = match self.permits.admit(kind, caller) {
            Ok(permit) => permit,
            Err(refused) => return ConcurrencyLimitFuture::Refused(refused),
        };
        let charge_to = charge_to(&request, caller);
        let until = kind.is_stream().then_some(&self.permits.drain);
        let request = match kind {
            Kind::BidiStream => until_drain(request, &self.permits.drain),
            Kind::Stream | Kind::OpenStream => until_drain(soon(request), &self.permits.drain),
            _ => soon(request),
        };
        ConcurrencyLimitFuture::Open {
            inner: self.inner.call(request),
            stay: Some(CallPermit::new(permit, until)),
            charge_to,
        }
    }
}

/// Whose unsent answers those of a call are: those of its stream where it is one, or else of its connection.
fn charge_to(request: &Request<Body>, caller: Option<&Caller>) -> Option<ChargeTo> {
    let stream = request.extensions().get::<Arc<Answers>>();
    let usage = caller.and_then(|caller| caller.peer.as_ref()?.usage.as_ref());
    let answers = stream.or_else(|| usage.map(|usage| &usage.answers))?;
    Some(ChargeTo {
        answers: Arc::clone(answers),
        identity: caller.and_then(|caller| caller.usage.clone()),
    })
}

/// A call at the gate.
#[derive(Debug)]
pub(super) enum ConcurrencyLimitFuture<F> {
    /// It was not let in.
    Refused(Error),
    /// It is under way.
    Open {
        /// The call.
        inner: F,
        /// What it holds until it is answered, or over where it is a stream.
        stay: Option<CallPermit>,
        /// Whom its answer counts for.
        charge_to: Option<ChargeTo>,
    },
}

impl<F, B, E> Future for ConcurrencyLimitFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
    B: Default,
{
    type Output = Result<Response<PermitBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Refused(refused) => Poll::Ready(Ok(status::of(refused.clone()).into_http())),
            Self::Open { inner, stay, charge_to } => {
                let answered = ready!(Pin::new(inner).poll(cx));
                // A client may take its answer when it likes, and keeps no other call out meanwhile.
                let stay = stay.take().filter(CallPermit::is_of_stream);
                let charge_to = charge_to.take();
                Poll::Ready(answered.map(|response| response.map(|body| PermitBody::new(body, stay, charge_to))))
            }
        }
    }
}

#[cfg(test)]
mod tests;
