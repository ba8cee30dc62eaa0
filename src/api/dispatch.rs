//! Selects the service of a call: calls of the lock service go to it directly, all others through
//! the router.
//!
//! The router matches path parameters and boxes the call and its answer once more. Calls with a
//! known path avoid that cost.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::Either;
use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

/// `L` for the paths below its name, `R` for the rest.
#[derive(Debug, Clone)]
pub(super) struct Dispatch<L, R> {
    locks: L,
    rest: R,
}

impl<L, R> Dispatch<L, R> {
    /// Sends the calls of `locks` to it and all others to `rest`.
    pub(super) fn new(locks: L, rest: R) -> Self {
        Self { locks, rest }
    }
}

impl<L, R> Service<Request<Body>> for Dispatch<L, R>
where
    L: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + NamedService,
    R: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<L::Future, R::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both are always ready: neither limits its calls.
        match self.locks.poll_ready(cx) {
            Poll::Ready(Ok(())) => self.rest.poll_ready(cx),
            other => other,
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let own = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(L::NAME))
            .is_some_and(|method| method.starts_with('/'));
        if own {
            Either::Left(self.locks.call(request))
        } else {
            Either::Right(self.rest.call(request))
        }
    }
}
