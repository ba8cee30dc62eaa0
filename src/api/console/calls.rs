//! The gRPC calls of the page.

use std::convert::Infallible;

use bytes::Buf;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::Limits;
use super::messages::{Messages, OneMessage};
use crate::api::connection::Remote;
use crate::api::request_log::REQUEST_ID;
use crate::api::{json, status};

/// Makes the calls of one connection.
#[derive(Debug, Clone)]
pub(super) struct Calls<S> {
    service: S,
    limits: Limits,
    remote: Remote,
}

impl<S, B> Calls<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Error = Status> + Default + Send + 'static,
    B::Data: Buf + Send,
{
    /// Calls of this client, which the service executes.
    pub(super) fn new(service: S, limits: Limits, remote: Remote) -> Self {
        Self {
            service,
            limits,
            remote,
        }
    }

    /// Makes a call with the credentials in these headers.
    ///
    /// # Errors
    /// The status of a call that failed before its first message.
    ///
    /// # Cancellation safety
    /// If dropped, the call is cancelled.
    pub(super) async fn call(
        &mut self,
        path: &'static str,
        headers: &HeaderMap,
        message: &[u8],
    ) -> Result<Messages<B>, Status> {
        let mut request = Request::new(Body::new(OneMessage::new(message)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::from_static(path);
        let own = request.headers_mut();
        own.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        for name in [AUTHORIZATION, REQUEST_ID] {
            for value in headers.get_all(&name) {
                own.append(&name, value.clone());
            }
        }
        request.extensions_mut().insert(self.remote.clone());
        match self.service.clone().oneshot(request).await {
            Ok(answer) => Messages::of(answer),
            Err(never) => match never {},
        }
    }

    /// The limits of the server.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The client.
    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }
}

/// An answer that its own descriptor does not describe.
#[derive(Debug, thiserror::Error)]
#[error("an answer cannot be converted to JSON: {0}")]
struct NoJson(json::Mismatch);

/// The status of an answer that cannot be converted to JSON.
pub(super) fn json_bug(mismatch: json::Mismatch) -> Status {
    status::internal(NoJson(mismatch))
}
