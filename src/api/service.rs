//! The bounds of a service that answers calls, and what every body that wraps another passes on.

use std::convert::Infallible;

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
