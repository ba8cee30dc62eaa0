//! The answers of calls: their headers, messages and errors, translated from gRPC's form.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::message::{prefixed, split};
use super::problem::{Problem, http_status};
use super::{Codec, Form};
use crate::api::capacity::CountedData;
use crate::api::large_reads::Turns;
use crate::api::{json, status};

/// The flag of the message that ends a stream.
const END: u8 = 2;
/// A message of more encoded bytes takes a place among the large reads.
const LARGE: usize = json::PIECE_BYTES;
/// The header of an answer with the encodings that the service accepts.
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// An answer of the service that does not match its descriptor.
#[derive(Debug, thiserror::Error)]
#[error("an answer cannot be converted to JSON: {0}")]
struct NoJson(json::Mismatch);

/// A message of the service that its transport has split, which it does not.
#[derive(Debug, thiserror::Error)]
#[error("an answer has a part of a message")]
struct Split;

/// The body of an answer, whatever its client speaks.
pub(in crate::api) enum AnswerBody<B: Body> {
    /// As the service answers.
    Grpc(B),
    /// All of it.
    Whole(Option<AnswerBytes<B::Data>>),
    /// A stream of messages.
    Stream(Box<Messages<B>>),
}

impl<B: Body> From<Bytes> for AnswerBody<B> {
    fn from(bytes: Bytes) -> Self {
        let whole = CountedData::new(bytes, None).ok().filter(Buf::has_remaining);
        Self::Whole(whole.map(|bytes| AnswerBytes::Translated(bytes, Vec::new())))
    }
}

impl<B: Body<Data: Send + Unpin, Error = Status> + Unpin + 'static> Body for AnswerBody<B> {
    type Data = AnswerBytes<B::Data>;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        match self.get_mut() {
            Self::Grpc(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(AnswerBytes::Grpc))))
            }
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(messages) => {
                let bytes = ready!(messages.poll_bytes(cx));
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Grpc(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(messages) => messages.state.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Grpc(body) => body.size_hint(),
            Self::Whole(bytes) => {
                let bytes = bytes.as_ref().map_or(0, Buf::remaining);
                SizeHint::with_exact(bytes.try_into().unwrap_or(u64::MAX))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// The bytes of an answer.
pub(in crate::api) enum AnswerBytes<D> {
    /// As the service answers.
    Grpc(D),
    /// Translated from these, which count as written when the first byte is. They may hold grants.
    Translated(CountedData<Bytes>, Vec<D>),
}

impl<D: Buf> Buf for AnswerBytes<D> {
    fn remaining(&self) -> usize {
        match self {
            Self::Grpc(bytes) => bytes.remaining(),
            Self::Translated(bytes, _) => bytes.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Grpc(bytes) => bytes.chunk(),
            Self::Translated(bytes, _) => bytes.chunk(),
        }
    }

    /// The transport calls this for the bytes that it has written.
    fn advance(&mut self, count: usize) {
        match self {
            Self::Grpc(bytes) => bytes.advance(count),
            Self::Translated(bytes, originals) => {
                bytes.advance(count);
                if count > 0 {
                    for mut original in originals.drain(..) {
                        original.advance(original.remaining());
                    }
                }
            }
        }
    }
}

impl Form {
    /// The answer of a call, translated. A stream ends at the deadline.
    pub(super) async fn answer<B: Body<Error = Status> + Unpin>(
        self,
        call: impl Future<Output = Result<Response<B>, Infallible>>,
        deadline: Option<Duration>,
    ) -> Result<Response<AnswerBody<B>>, Infallible> {
        let deadline = deadline.map(|deadline| Box::pin(sleep(deadline)));
        let (mut head, mut body) = call.await?.into_parts();
        if let Some(status) = status::failure(&head.headers) {
            return Ok(self.failed(&head.headers, &status));
        }
        if self.streams {
            let mut response = self.headed(&head.headers, None);
            let turns = head.extensions.remove();
            *response.body_mut() = AnswerBody::Stream(Box::new(Messages::new(body, self, deadline, turns)));
            return Ok(response);
        }
        let (mut originals, mut trailers) = (Vec::new(), HeaderMap::new());
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => originals.push(data),
                Ok(Err(frame)) => trailers = frame.into_trailers().unwrap_or_default(),
                Err(status) => return Ok(self.failed(&head.headers, &status)),
            }
        }
        if let Some(status) = status::failure(&trailers) {
            return Ok(self.failed(&trailers, &status));
        }
        let whole = originals.iter().map(Buf::chunk).collect::<Vec<_>>().concat();
        let message = self.message(whole).await;
        let answer = match message.and_then(|message| self.counted(message).map_err(status::of)) {
            Ok(answer) => answer,
            Err(status) => return Ok(self.failed(&head.headers, &status)),
        };
        let mut response = self.headed(&head.headers, Some(&trailers));
        if !answer.has_remaining() {
            // Nothing is written after the headers.
            originals
                .iter_mut()
                .for_each(|original| original.advance(original.remaining()));
            return Ok(response);
        }
        *response.body_mut() = AnswerBody::Whole(Some(AnswerBytes::Translated(answer, originals)));
        Ok(response)
    }

    /// The answer to a call that failed, with metadata in these headers.
    pub(super) fn failed<B: Body>(&self, metadata: &HeaderMap, status: &Status) -> Response<AnswerBody<B>> {
        let mut response = self.headed(metadata, None);
        let bytes = if self.streams {
            end(Some(status), &HeaderMap::new())
        } else {
            *response.status_mut() = http_status(status.code());
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            text(&Problem::of(status))
        };
        // Without its text, an error is still one by its status.
        let bytes = self.counted(bytes).ok();
        *response.body_mut() = AnswerBody::Whole(bytes.map(|bytes| AnswerBytes::Translated(bytes, Vec::new())));
        response
    }

    /// An answer with this metadata and no body.
    fn headed<B: Body>(&self, metadata: &HeaderMap, trailers: Option<&HeaderMap>) -> Response<AnswerBody<B>> {
        let mut response = Response::new(AnswerBody::Whole(None));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.content_type());
        for (name, value) in own(metadata) {
            headers.append(name, value.clone());
        }
        if let Some(encodings) = metadata.get(GRPC_ACCEPT_ENCODING) {
            let name = if self.streams {
                "connect-accept-encoding"
            } else {
                "accept-encoding"
            };
            headers.insert(name, encodings.clone());
        }
        for (name, value) in trailers.into_iter().flat_map(own) {
            if let Ok(name) = HeaderName::try_from(format!("trailer-{name}")) {
                headers.append(name, value.clone());
            }
        }
        response
    }

    /// The only message of an answer.
    async fn message(&self, whole: Vec<u8>) -> Result<Bytes, Status> {
        let Some((0, message, [])) = split(&whole) else {
            return Err(status::internal(Split));
        };
        let Codec::Json(Some(method)) = &self.codec else {
            return Ok(Bytes::copy_from_slice(message));
        };
        let line = json::line_in_pieces(method.output(), message).await;
        line.map(Bytes::from)
            .map_err(|mismatch| status::internal(NoJson(mismatch)))
    }

    /// A message in the codec of the call.
    fn encoded(&self, message: &[u8]) -> Result<Bytes, Status> {
        let Codec::Json(Some(method)) = &self.codec else {
            return Ok(Bytes::copy_from_slice(message));
        };
        let line = json::line(method.output(), message);
        line.map(Bytes::from)
            .map_err(|mismatch| status::internal(NoJson(mismatch)))
    }

    /// The messages in these bytes, each with its prefix, in the codec of the call.
    fn translated(&self, mut messages: &[u8]) -> Result<Bytes, Status> {
        let mut translated = Vec::new();
        while !messages.is_empty() {
            let (flags, message, rest) = split(messages).ok_or_else(|| status::internal(Split))?;
            translated.extend_from_slice(&prefixed(flags, &self.encoded(message)?));
            messages = rest;
        }
        Ok(translated.into())
    }

    fn counted(&self, bytes: Bytes) -> Result<CountedData<Bytes>, crate::error::Error> {
        CountedData::new(bytes, self.byte_counters.as_ref())
    }
}

/// The answer to a request that is no call.
pub(in crate::api) fn refusal<B: Body>(status: StatusCode, problem: &str) -> Response<AnswerBody<B>> {
    let mut response = Response::new(AnswerBody::from(text(&Problem::refused(status, problem))));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// The metadata in gRPC's headers that is not of gRPC itself.
fn own(metadata: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    let is_own = |name: &HeaderName| !name.as_str().starts_with("grpc-") && name != CONTENT_TYPE;
    metadata.iter().filter(move |(name, _)| is_own(name))
}

/// The message that ends a stream.
fn end(status: Option<&Status>, trailers: &HeaderMap) -> Bytes {
    let mut metadata = serde_json::Map::new();
    for (name, value) in own(trailers) {
        let values = metadata.entry(name.as_str()).or_insert_with(|| json!([]));
        if let Some(values) = values.as_array_mut() {
            values.push(String::from_utf8_lossy(value.as_bytes()).into());
        }
    }
    let mut end = serde_json::Map::new();
    if let Some(status) = status {
        end.insert("error".into(), json!(Problem::of(status)));
    }
    if !metadata.is_empty() {
        end.insert("metadata".into(), metadata.into());
    }
    prefixed(END, &text(&end))
}

fn text(json: &impl Serialize) -> Bytes {
    serde_json::to_vec(json).unwrap_or_default().into()
}

/// A message, and what it is in the codec of its call.
type Translated<D> = (D, Result<Bytes, Status>);

/// The messages of a stream, and its end.
pub(in crate::api) struct Messages<B: Body> {
    /// Absent after the end.
    state: Option<B>,
    form: Form,
    deadline: Option<Pin<Box<Sleep>>>,
    /// For large messages, where there may be some.
    turns: Option<Turns>,
    /// The large message that is being translated.
    large: Option<BoxFuture<'static, Translated<B::Data>>>,
}

impl<B: Body> Messages<B> {
    fn new(body: B, form: Form, deadline: Option<Pin<Box<Sleep>>>, turns: Option<Turns>) -> Self {
        Self {
            state: Some(body),
            form,
            deadline,
            turns,
            large: None,
        }
    }
}

impl<B: Body<Data: Send, Error = Status> + Unpin + 'static> Messages<B> {
    /// The bytes of the next messages, or of the end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerBytes<B::Data>>> {
        if self.state.is_none() {
            return Poll::Ready(None);
        }
        let is_over = |deadline: &mut Pin<Box<Sleep>>| deadline.as_mut().poll(cx).is_ready();
        if self.deadline.as_mut().is_some_and(is_over) {
            return Poll::Ready(self.ended(Some(&status::deadline_passed()), &HeaderMap::new()));
        }
        if let Some(translating) = &mut self.large {
            let (data, translated) = ready!(translating.as_mut().poll(cx));
            self.large = None;
            return Poll::Ready(self.passed_on(data, translated));
        }
        let Some(body) = &mut self.state else {
            return Poll::Ready(None);
        };
        let frame = match ready!(Pin::new(body).poll_frame(cx)) {
            None => return Poll::Ready(self.ended(None, &HeaderMap::new())),
            Some(Err(status)) => return Poll::Ready(self.ended(Some(&status), &HeaderMap::new())),
            Some(Ok(frame)) => frame,
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                let status = status::failure(&trailers);
                return Poll::Ready(self.ended(status.as_ref(), &trailers));
            }
        };
        // Both protocols put the same prefix before each message.
        if let Codec::Proto = self.form.codec {
            return Poll::Ready(Some(AnswerBytes::Grpc(data)));
        }
        if let Some(turns) = self.turns.clone().filter(|_| data.remaining() > LARGE) {
            let form = self.form.clone();
            let translating = async move {
                let _place = turns.enter().await;
                let translated = form.translated(data.chunk());
                (data, translated)
            };
            self.large = Some(translating.boxed());
            return self.poll_bytes(cx);
        }
        let translated = self.form.translated(data.chunk());
        Poll::Ready(self.passed_on(data, translated))
    }

    /// The bytes that translate this message, or the end.
    fn passed_on(&mut self, data: B::Data, translated: Result<Bytes, Status>) -> Option<AnswerBytes<B::Data>> {
        match translated.and_then(|messages| self.form.counted(messages).map_err(status::of)) {
            Ok(messages) => Some(AnswerBytes::Translated(messages, vec![data])),
            Err(status) => self.ended(Some(&status), &HeaderMap::new()),
        }
    }

    fn ended(&mut self, status: Option<&Status>, trailers: &HeaderMap) -> Option<AnswerBytes<B::Data>> {
        (self.state, self.large) = (None, None);
        // Without it, the client notices the lack of an end.
        let end = self.form.counted(end(status, trailers)).ok()?;
        Some(AnswerBytes::Translated(end, Vec::new()))
    }
}
