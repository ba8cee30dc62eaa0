//! A server that answers and then says nothing.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body without any message.
#[derive(Debug, Default)]
pub struct Silence;

impl http_body::Body for Silence {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[derive(Debug, Clone)]
pub struct Spawned;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawned {
    fn execute(&self, call: F) {
        tokio::spawn(call);
    }
}

/// The address of a server that answers each call with headers, and then says nothing.
pub async fn silent_server() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let answer = hyper::service::service_fn(|_| async {
                let response = http::Response::builder().header("content-type", "application/grpc");
                response.body(Silence)
            });
            let connection = hyper::server::conn::http2::Builder::new(Spawned)
                .serve_connection(hyper_util::rt::TokioIo::new(socket), answer);
            tokio::spawn(connection);
        }
    });
    address
}
