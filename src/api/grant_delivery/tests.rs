use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use http::Response;
use http_body::{Body, Frame};
use prost::Message;
use tonic::body::Body as TonicBody;
use tonic::codec::{Codec, EncodeBody, SingleMessageCompressionOverride};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::*;
use crate::api::concurrency_limit::{CallBody, CallTerms};
use crate::api::proto::{AcquireRequest, AcquireResponse, Lease};

/// The response with a body that confirms or undoes its grants.
fn carried<B>(mut response: Response<B>) -> Response<CallBody<B>> {
    let undelivered = response.extensions_mut().remove();
    response.map(|body| CallBody::new(body, undelivered, CallTerms::default(), None))
}

/// Counts the grants that were delivered, and those that were undone.
#[derive(Debug, Default)]
struct Ends {
    delivered: AtomicU32,
    undone: AtomicU32,
}

impl Ends {
    fn both(&self) -> (u32, u32) {
        (
            self.delivered.load(Ordering::SeqCst),
            self.undone.load(Ordering::SeqCst),
        )
    }
}

#[derive(Debug)]
struct Grant {
    ends: Arc<Ends>,
    delivered: bool,
}

impl Deliver for Grant {
    fn deliver(mut self: Box<Self>) {
        self.delivered = true;
        self.ends.delivered.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.delivered {
            self.ends.undone.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn grant(ends: &Arc<Ends>) -> Grant {
    Grant {
        ends: ends.clone(),
        delivered: false,
    }
}

/// One empty message, framed.
fn request() -> http::Request<TonicBody> {
    http::Request::new(TonicBody::new("\0\0\0\0\0".to_owned()))
}

/// Answers one call like a handler, through the transport's own encoding.
async fn answered(ends: &Arc<Ends>) -> Response<CallBody<TonicBody>> {
    let ends = ends.clone();
    let handler = service_fn(move |_: tonic::Request<AcquireRequest>| {
        let mut response = tonic::Response::new(AcquireResponse::default());
        response.extensions_mut().insert(Undelivered::new([grant(&ends)]));
        futures::future::ok::<_, Status>(response)
    });
    let codec = ProstCodec::<AcquireResponse, AcquireRequest>::default();
    carried(tonic::server::Grpc::new(codec).unary(handler, request()).await)
}

async fn next<B: Body + Unpin>(body: &mut B) -> Option<Frame<B::Data>> {
    futures::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx))
        .await?
        .ok()
}

#[tokio::test]
async fn a_grant_is_kept_once_its_answer_is_sent() {
    let ends = Arc::new(Ends::default());
    let mut body = answered(&ends).await.into_body();
    assert_eq!(ends.both(), (0, 0));
    let mut data = next(&mut body).await.and_then(|frame| frame.into_data().ok()).unwrap();
    assert_eq!(ends.both(), (0, 0), "it waits for a window");
    data.advance(1);
    assert_eq!(ends.both(), (1, 0));
    drop(data);
    let trailers = next(&mut body).await.and_then(|frame| frame.into_trailers().ok());
    assert_eq!(trailers.unwrap()[Status::GRPC_STATUS], "0");
    drop(body);
    assert_eq!(ends.both(), (1, 0));
}

// G16
#[tokio::test]
async fn a_grant_is_undone_if_its_body_is_not_read() {
    let ends = Arc::new(Ends::default());
    let body = answered(&ends).await.into_body();
    assert_eq!(ends.both(), (0, 0));
    drop(body);
    assert_eq!(ends.both(), (0, 1));
}

#[tokio::test]
async fn a_grant_is_undone_if_its_answer_gets_no_window() {
    let ends = Arc::new(Ends::default());
    let mut body = answered(&ends).await.into_body();
    let data = next(&mut body).await.and_then(|frame| frame.into_data().ok()).unwrap();
    drop(body);
    assert_eq!(ends.both(), (0, 0));
    drop(data);
    assert_eq!(ends.both(), (0, 1));
}

#[tokio::test]
async fn an_answer_without_a_grant_passes_unchanged() {
    let response: Response<CallBody<_>> = carried(Status::aborted("held").into_http::<TonicBody>());
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!((status.code(), status.message()), (Code::Aborted, "held"));
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn a_grant_of_which_nothing_was_written_is_not_delivered() {
    let ends = Arc::<Ends>::default();
    let mut bytes = GrantBytes::new(Bytes::from_static(b"lease"), Some(&Undelivered::new([grant(&ends)])));
    bytes.advance(0);
    assert_eq!(ends.both(), (0, 0));
    drop(bytes);
    assert_eq!(ends.both(), (0, 1));
}

/// A message with a lease.
fn message() -> AcquireResponse {
    let lease = Some(Lease {
        lease_id: "lease".into(),
        ..Lease::default()
    });
    AcquireResponse { lease }
}

/// A body of a stream that sends these messages, each with its grant, as far as the transport takes them. `length` is what
/// the stream says of the length of a message.
fn stream_of(ends: &Arc<Ends>, messages: usize, length: usize) -> CallBody<TonicBody> {
    let undelivered = Undelivered::default();
    let slot = undelivered.clone();
    let ends = ends.clone();
    let mut left = messages;
    let source = futures::stream::poll_fn(move |_| {
        if left == 0 {
            return Poll::Pending;
        }
        left -= 1;
        slot.add(length, [(0, Box::new(grant(&ends)) as _)]);
        Poll::Ready(Some(Ok::<_, Status>(message())))
    });
    let encoded = EncodeBody::new_server(
        ProstCodec::<AcquireResponse, AcquireRequest>::default().encoder(),
        source,
        None,
        SingleMessageCompressionOverride::default(),
        None,
    );
    let mut response = Response::new(TonicBody::new(encoded));
    response.extensions_mut().insert(undelivered);
    carried(response).into_body()
}

#[tokio::test]
async fn each_grant_of_a_stream_is_kept_with_the_first_byte_of_its_own_message() {
    let ends = Arc::new(Ends::default());
    let length = message().encoded_len();
    let mut body = stream_of(&ends, 3, length);
    let mut data = next(&mut body).await.and_then(|frame| frame.into_data().ok()).unwrap();
    data.advance(PREFIX);
    assert_eq!(ends.both(), (0, 0));
    data.advance(1);
    assert_eq!(ends.both(), (1, 0));
    data.advance(length - 1 + PREFIX);
    assert_eq!(ends.both(), (1, 0));
    data.advance(1);
    assert_eq!(ends.both(), (2, 0));
    drop((data, body));
    assert_eq!(ends.both(), (2, 1), "nothing of the third was written");
}

#[tokio::test]
async fn the_grants_of_a_frame_in_another_encoding_are_kept_with_its_first_byte() {
    let ends = Arc::new(Ends::default());
    let mut body = stream_of(&ends, 3, 1);
    let mut data = next(&mut body).await.and_then(|frame| frame.into_data().ok()).unwrap();
    data.advance(1);
    assert_eq!(ends.both(), (3, 0));
}

#[tokio::test]
async fn the_grants_of_all_frames_of_a_stream_are_kept_once_all_was_written() {
    let ends = Arc::new(Ends::default());
    let length = message().encoded_len();
    let mut body = stream_of(&ends, 5_000, length);
    let (mut written, mut frames) = (0, 0);
    while ends.both() != (5_000, 0) {
        let mut data = next(&mut body).await.and_then(|frame| frame.into_data().ok()).unwrap();
        written += data.remaining();
        data.advance(data.remaining());
        frames += 1;
        assert_eq!(ends.both().0 as usize, written / (PREFIX + length), "frame {frames}");
    }
    assert!(frames > 1, "the transport makes several frames of them");
}

#[tokio::test]
async fn the_grants_of_a_stream_are_undone_if_their_frame_is_not_sent() {
    let ends = Arc::new(Ends::default());
    let mut body = stream_of(&ends, 3, message().encoded_len());
    let data = next(&mut body).await.and_then(|frame| frame.into_data().ok()).unwrap();
    drop(body);
    assert_eq!(ends.both(), (0, 0));
    drop(data);
    assert_eq!(ends.both(), (0, 3));
}
