//! What a handler must not let out: panics, and the transport's own words about a request that it
//! could not read.

use std::any::Any;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::{Code, Status};
use tower::Service;

use super::status;
use crate::name::InvalidField;

/// Answers INTERNAL for a panic of `inner`, and INVALID_FIELD for a request that cannot be read.
#[derive(Debug, Clone)]
pub(super) struct CatchPanic<S> {
    inner: S,
    request_bytes: usize,
}

impl<S> CatchPanic<S> {
    /// Guards `inner`, whose requests have at most `request_bytes`.
    pub(super) fn new(inner: S, request_bytes: usize) -> Self {
        Self { inner, request_bytes }
    }
}

impl<S, R, B> Service<Request<R>> for CatchPanic<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = CatchPanicFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        CatchPanicFuture {
            inner: self.inner.call(request),
            request_bytes: self.request_bytes,
        }
    }
}

/// A guarded call.
#[derive(Debug)]
pub(super) struct CatchPanicFuture<F> {
    inner: F,
    request_bytes: usize,
}

impl<F, B, E> Future for CatchPanicFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
    B: Default,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A call that panicked is never polled again, so nobody sees what it left half done.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.inner).poll(cx)));
        let answered = match polled {
            Ok(poll) => ready!(poll),
            Err(payload) => Ok(status::internal(Panicked::new(payload.as_ref())).into_http()),
        };
        Poll::Ready(answered.map(|response| readable(response, self.request_bytes)))
    }
}

/// A panic of a handler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a handler panicked: {message}")]
pub(super) struct Panicked {
    message: String,
}

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self {
            message: text.unwrap_or("without a message").into(),
        }
    }
}

/// Replaces the transport's answer to a request that it could not read.
///
/// It says INTERNAL for an unparsable message and OUT_OF_RANGE for one too large. An INTERNAL of
/// this service is told apart by its source.
fn readable<B: Default>(response: Response<B>, request_bytes: usize) -> Response<B> {
    let problem = match response.extensions().get::<Status>() {
        Some(status) if status.code() == Code::OutOfRange => format!("must be at most {request_bytes} bytes"),
        Some(status) if status.code() == Code::Internal && status.source().is_none() => {
            "must be one whole message of the method's request type".into()
        }
        _ => return response,
    };
    status::of(InvalidField::new("request", problem)).into_http()
}

#[cfg(test)]
mod tests;
