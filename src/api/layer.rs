//! The form of the layers that observe a call or change its answer. A layer says what it keeps for
//! each call; the service and the future around the inner ones are written here once. So are the bounds of a service that
//! answers calls, and what every body that wraps another passes on.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

/// A service that executes the calls of connections.
pub(super) trait CallService:
    Service<Request<Body>, Response = Response<Self::ResponseBody>, Error = Infallible, Future: Send + Unpin>
    + Clone
    + Send
    + 'static
{
    /// The body of its answers.
    type ResponseBody: http_body::Body<Data: Send + Unpin, Error = Status> + Default + Send + Unpin + 'static;
}

impl<S, B> CallService for S
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send + Unpin>,
    S: Clone + Send + 'static,
    B: http_body::Body<Data: Send + Unpin, Error = Status> + Default + Send + Unpin + 'static,
{
    type ResponseBody = B;
}

/// Implements the end and the size of a body that wraps another one in its field `body`.
macro_rules! as_inner_body {
    () => {
        fn is_end_stream(&self) -> bool {
            self.body.is_end_stream()
        }

        fn size_hint(&self) -> http_body::SizeHint {
            self.body.size_hint()
        }
    };
}
pub(super) use as_inner_body;

/// A layer around a service.
pub(super) trait Layer: Sized {
    /// What it keeps for each call.
    type Call;

    /// Begins a call, before the inner service gets its request.
    fn begin<R>(&self, request: &mut Request<R>) -> Self::Call;

    /// This layer around `inner`.
    fn around<S>(self, inner: S) -> Layered<Self, S> {
        Layered { layer: self, inner }
    }
}

/// A running call in a layer. If it is dropped before [`Self::answered`], the call was cancelled.
pub(super) trait LayerCall<B>: Sized {
    /// The body of its answer.
    type Body;

    /// Polls the inner call.
    fn poll<E>(&mut self, poll: impl FnOnce() -> Answered<B, E>) -> Answered<B, E> {
        poll()
    }

    /// Ends the call with its answer. Only the sending of the answer remains.
    fn answered(self, response: Response<B>) -> Response<Self::Body>;
}

/// The outcome of one poll of a call.
pub(super) type Answered<B, E> = Poll<Result<Response<B>, E>>;

/// A layer that may be switched off.
impl<B, C: LayerCall<B, Body = B>> LayerCall<B> for Option<C> {
    type Body = B;

    fn poll<E>(&mut self, poll: impl FnOnce() -> Answered<B, E>) -> Answered<B, E> {
        match self {
            Some(call) => call.poll(poll),
            None => poll(),
        }
    }

    fn answered(self, response: Response<B>) -> Response<B> {
        match self {
            Some(call) => call.answered(response),
            None => response,
        }
    }
}

/// A service in a layer.
#[derive(Debug, Clone)]
pub(super) struct Layered<L, S> {
    layer: L,
    inner: S,
}

impl<L, S, R, B> Service<Request<R>> for Layered<L, S>
where
    L: Layer,
    L::Call: LayerCall<B> + Unpin,
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<<L::Call as LayerCall<B>>::Body>;
    type Error = S::Error;
    type Future = LayeredFuture<L::Call, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<R>) -> Self::Future {
        LayeredFuture {
            call: Some(self.layer.begin(&mut request)),
            inner: self.inner.call(request),
        }
    }
}

/// A running call; dropping it cancels it.
#[derive(Debug)]
pub(super) struct LayeredFuture<C, F> {
    /// Absent after the answer.
    call: Option<C>,
    inner: F,
}

impl<C, F, B, E> Future for LayeredFuture<C, F>
where
    C: LayerCall<B> + Unpin,
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = Result<Response<C::Body>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, inner } = &mut *self;
        let polled = call.as_mut().map(|call| call.poll(|| Pin::new(inner).poll(cx)));
        let answered = ready!(polled.expect("a future is not polled after its end"));
        let call = call.take();
        Poll::Ready(answered.map(|response| call.expect("it was polled").answered(response)))
    }
}
