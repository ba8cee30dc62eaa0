use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes};
use futures::stream;
use http_body::{Body as _, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::answer::AnswerBytes;
use super::message::{PREFIX, prefixed};
use super::*;
use crate::api::authenticate::Caller;
use crate::api::capacity::{Capacity, ConnectionUsage};
use crate::api::large_reads::{LargeReads, Step, Turns};
use crate::api::peer::Peer;
use crate::api::proto::{GetLockResponse, LockState, WatchLockResponse, watch_lock_response};
use crate::api::settings::Settings;
use crate::rpc::path;

type Answer = AnswerBody<UnsyncBoxBody<Original, Status>>;

/// Longer than what an answer counts beside its bytes.
const LONG: usize = 4_000;

/// Bytes of the service, of which it is counted how many were written.
#[derive(Debug, Clone)]
struct Original(Bytes, Arc<AtomicUsize>);

impl Buf for Original {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        &self.0
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
        self.1.fetch_add(count, Ordering::Relaxed);
    }
}

/// A connection, and a stream on it.
struct Client {
    remote: Remote,
    usage: Arc<ConnectionUsage>,
    stream: Arc<UnsentAnswers>,
    written: Arc<AtomicUsize>,
}

impl Client {
    fn connected() -> Self {
        let capacity = Capacity::new(&Settings::default(), None);
        let usage = Arc::new(capacity.connect(Peer::Unix, CancellationToken::new()).unwrap());
        let mut remote = Remote::new(Peer::Unix, None);
        remote.usage = Some(Arc::clone(&usage));
        Self {
            remote,
            stream: usage.stream(CancellationToken::new()),
            usage,
            written: Arc::default(),
        }
    }

    /// The answer to a call whose service sends this message and this status.
    async fn call(&self, case: &Case, status: &Status) -> Answer {
        self.call_with(case, status, None).await
    }

    /// The same call, whose large messages take these turns.
    async fn call_with(&self, (content_type, method, message): &Case, status: &Status, turns: Option<Turns>) -> Answer {
        let request = Request::post(format!("http://localhost{method}")).header(CONTENT_TYPE, *content_type);
        let request = request.body(Body::empty()).unwrap();
        let mut call = Call::of::<UnsyncBoxBody<Original, Status>>(request, &self.remote, 1_000)
            .ok()
            .unwrap();
        if is_stream(content_type) {
            call.count_for(Arc::clone(&self.stream));
        }
        let original = Original(prefixed(0, message), Arc::clone(&self.written));
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers).unwrap();
        let frames = [Frame::data(original), Frame::trailers(trailers)];
        let body = StreamBody::new(stream::iter(frames.map(Ok))).boxed_unsync();
        let mut response = Response::new(body);
        if let Some(turns) = turns {
            response.extensions_mut().insert(turns);
        }
        let Ok(response) = call.make(|_| ready(Ok(response))).await;
        response.into_body()
    }

    fn unsent(&self, content_type: &str) -> usize {
        match is_stream(content_type) {
            true => self.stream.unsent(),
            false => self.usage.answers.unsent(),
        }
    }

    fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }
}

fn is_stream(content_type: &str) -> bool {
    content_type.contains("connect")
}

async fn next(body: &mut Answer) -> AnswerBytes<Original> {
    let frame = body.frame().await.unwrap().unwrap();
    frame.into_data().ok().unwrap()
}

/// A content type, a method, and an encoded answer of it.
type Case = (&'static str, &'static str, Vec<u8>);

fn cases() -> [Case; 3] {
    let state = LockState {
        name: "x".repeat(LONG),
        ..LockState::default()
    };
    let event = WatchLockResponse {
        event: Some(watch_lock_response::Event::State(state.clone())),
    };
    let answer = GetLockResponse { lock: Some(state) }.encode_to_vec();
    [
        ("application/json", path::GET_LOCK, answer.clone()),
        ("application/proto", path::GET_LOCK, answer),
        ("application/connect+json", path::WATCH_LOCK, event.encode_to_vec()),
    ]
}

#[tokio::test]
async fn translated_bytes_count_as_unsent_until_they_are_written() {
    let failure = Status::unavailable("x".repeat(LONG));
    for case in cases() {
        let client = Client::connected();
        let unsent = || client.unsent(case.0);
        let mut answer = client.call(&case, &Status::ok("")).await;
        let mut failed = client.call(&case, &failure).await;
        let mut parts = vec![next(&mut answer).await, next(&mut failed).await];
        if is_stream(case.0) {
            // The first part of both is the message.
            parts.push(next(&mut failed).await);
        }
        for mut part in parts {
            let (length, before) = (part.remaining(), unsent());
            assert!(length > LONG && before >= length, "{}: {before} of {length}", case.0);
            part.advance(1);
            assert_eq!(before - unsent(), 1, "{}", case.0);
            part.advance(length - 1);
            drop(part);
            assert!(before - unsent() >= length, "{}", case.0);
        }
    }
}

#[tokio::test]
async fn what_an_answer_was_translated_from_is_written_with_its_first_byte() {
    for case in cases() {
        for taken in [0, 1] {
            let client = Client::connected();
            let mut answer = client.call(&case, &Status::ok("")).await;
            let mut bytes = next(&mut answer).await;
            assert_eq!(client.written(), 0, "{}", case.0);
            bytes.advance(taken);
            drop(bytes);
            assert_eq!(client.written(), taken * (PREFIX + case.2.len()), "{}", case.0);
        }
    }
}

#[tokio::test]
async fn an_answer_without_a_body_is_written_with_its_headers() {
    let client = Client::connected();
    let case = ("application/proto", path::RELEASE, Vec::new());
    let answer = client.call(&case, &Status::ok("")).await;
    assert!(answer.is_end_stream());
    assert_eq!(client.written(), PREFIX);
}

// G193
#[tokio::test]
async fn a_large_message_of_a_stream_in_json_takes_a_place_among_the_large_reads() {
    let caller = Caller::of(&mut http::Extensions::new());
    let reads = LargeReads::new(1);
    let held = reads.enter(Step::Convert, &caller).await;
    let state = LockState {
        name: "x".repeat(1 << 20),
        ..LockState::default()
    };
    let event = WatchLockResponse {
        event: Some(watch_lock_response::Event::State(state)),
    };
    let large = ("application/connect+json", path::WATCH_LOCK, event.encode_to_vec());
    let [_, _, small] = cases();
    let (client, turns) = (Client::connected(), || Some(reads.turns_of(&caller)));
    let mut answer = client.call_with(&small, &Status::ok(""), turns()).await;
    assert!(next(&mut answer).await.has_remaining());
    let mut answer = client.call_with(&large, &Status::ok(""), turns()).await;
    let mut message = Box::pin(next(&mut answer));
    assert!(futures::poll!(&mut message).is_pending());
    assert_eq!(reads.count(&Step::Convert), (1, 1));
    drop(held);
    assert!(message.await.remaining() > 1 << 20);
    assert_eq!(reads.count(&Step::Convert), (0, 0), "it is passed on");
    assert!(next(&mut answer).await.has_remaining(), "the end follows");
    assert!(answer.frame().await.is_none());
}
