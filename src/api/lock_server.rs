//! The lock service, of which KeepAlive takes larger messages than the other methods.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::concurrency_limit::BEAT_BYTES;
use super::lock::LockApi;
use super::proto::lock_service_server::LockServiceServer;
use crate::rpc::path;

/// The lock service, with a limit of its own for the messages of KeepAlive.
#[derive(Debug, Clone)]
pub(super) struct LockServer {
    calls: LockServiceServer<LockApi>,
    beat_bytes: usize,
}

impl LockServer {
    /// The service whose requests have at most `request_bytes`.
    pub(super) fn new(calls: LockServiceServer<LockApi>, request_bytes: usize) -> Self {
        Self {
            calls,
            beat_bytes: BEAT_BYTES.max(request_bytes),
        }
    }
}

impl NamedService for LockServer {
    const NAME: &'static str = LockServiceServer::<LockApi>::NAME;
}

impl Service<Request<Body>> for LockServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <LockServiceServer<LockApi> as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The generated service is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() == path::KEEP_ALIVE {
            let mut beats = self.calls.clone().max_decoding_message_size(self.beat_bytes);
            return beats.call(request);
        }
        self.calls.call(request)
    }
}
