//! A layer of tower that asks for the token of a lock.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures::future::Either;
use tonic::codegen::http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use tower::{Layer, Service};

use super::{FencingToken, StaleToken, parse};

/// The header that carries the token of a call.
pub const HEADER: HeaderName = HeaderName::from_static("x-fencing-token");

/// The token that a request brought, which [`FenceLayer`] puts into its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestToken(u64);

impl RequestToken {
    /// The token as one of the lock whose holders send the request.
    pub fn of(self, lock: impl Into<String>) -> FencingToken {
        let lock = lock.into();
        FencingToken { lock, number: self.0 }
    }
}

impl StaleToken {
    /// The answer 412, for the handler whose raise was refused.
    pub fn response<B: From<&'static str>>(&self) -> Response<B> {
        refusal(
            StatusCode::PRECONDITION_FAILED,
            "a newer holder of the lock has used this resource",
        )
    }
}

/// A layer for a service of HTTP, such as a router of axum. A POST, PUT, PATCH or DELETE without a token is answered with 428, and
/// one with a bad token or several with 400. A handler finds the token as [`RequestToken`] in the extensions of the request.
///
/// The layer compares nothing, because only the transaction of the work can: the handler raises the token there, and answers
/// [`StaleToken::response`], which is 412, if the raise is refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct FenceLayer;

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceService(inner)
    }
}

/// The service of [`FenceLayer`].
#[derive(Debug, Clone)]
pub struct FenceService<S>(S);

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<&'static str>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<R>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        if writes.contains(request.method()) {
            match token_of(request.headers()) {
                Ok(token) => request.extensions_mut().insert(token),
                Err((status, text)) => return Either::Right(ready(Ok(refusal(status, text)))),
            };
        }
        Either::Left(self.0.call(request))
    }
}

fn token_of(headers: &HeaderMap) -> Result<RequestToken, (StatusCode, &'static str)> {
    let mut given = headers.get_all(HEADER).iter();
    let missing = "the header X-Fencing-Token must have the token of the lock";
    let first = given.next().ok_or((StatusCode::PRECONDITION_REQUIRED, missing))?;
    let only = given.next().is_none().then_some(first);
    let number = only
        .and_then(|value| value.to_str().ok())
        .and_then(|text| parse(text).ok());
    let bad = "the header X-Fencing-Token must be a number from 1 to 2^53 - 1";
    number.map(RequestToken).ok_or((StatusCode::BAD_REQUEST, bad))
}

fn refusal<B: From<&'static str>>(status: StatusCode, text: &'static str) -> Response<B> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response
}
