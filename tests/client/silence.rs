//! Servers that answer and then say nothing.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use fencepost::api::proto::session_event::{Event, Opened};
use fencepost::api::proto::{SessionEvent, SessionResponse};
use http_body::Frame;
use prost::Message;
use tokio::time::{Sleep, sleep};

/// A body without any message.
#[derive(Debug, Default)]
pub struct Silence;

impl http_body::Body for Silence {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// The body of a session that is opened, answers no command, and ends after a while as for credentials that are not
/// accepted any more.
#[derive(Debug)]
pub struct Expiring {
    is_open: bool,
    end: Pin<Box<Sleep>>,
}

impl Expiring {
    /// One that ends after this time.
    pub fn after(time: Duration) -> Self {
        Self {
            is_open: false,
            end: Box::pin(sleep(time)),
        }
    }
}

impl http_body::Body for Expiring {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.is_open {
            self.is_open = true;
            return Poll::Ready(Some(Ok(Frame::data(opened()))));
        }
        ready!(self.end.as_mut().poll(cx));
        let status = [("grpc-status".parse(), "16".parse())];
        let status = status.map(|(name, value)| (name.expect("a name"), value.expect("a value")));
        Poll::Ready(Some(Ok(Frame::trailers(status.into_iter().collect()))))
    }
}

/// The first message of a session, as gRPC frames it.
fn opened() -> Bytes {
    let opened = Event::Opened(Opened {
        command_limit: 1000,
        lease_limit: 1000,
        unread_bytes_limit: 1 << 20,
    });
    let message = SessionResponse {
        events: vec![SessionEvent { event: Some(opened) }],
    };
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.encoded_len()).expect("a small message"));
    message.encode(&mut framed).expect("room");
    framed.freeze()
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
