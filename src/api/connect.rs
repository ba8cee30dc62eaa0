//! Connect: calls with plain JSON or Protobuf in their bodies, over HTTP/1.1 and HTTP/2.
//!
//! A request of this protocol becomes the gRPC request of the same call before it enters the layers, and the answer that
//! leaves them is translated back, so that a call has one path whatever its client speaks.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::TryFutureExt;
use futures::future::{Either, MapOk};
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use prost_reflect::MethodDescriptor;
use tonic::Status;
use tonic::body::Body;

pub(super) use self::answer::{AnswerBody, refusal};
use self::message::Message;
use super::capacity::{ByteCounters, UnsentAnswers};
use super::connection::Remote;
use super::{deadline, json, status};
use crate::name::InvalidField;

mod answer;
mod message;
mod problem;

/// The header with the types that a method accepts.
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");
/// The headers of the protocol.
const PROTOCOL: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
/// The header that gRPC has for the encoding of messages.
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// The types of the calls with one answer, and of those with a stream of them.
const UNARY_TYPES: &str = "application/json, application/proto";
const STREAM_TYPES: &str = "application/connect+json, application/connect+proto";

/// The future of an answer.
type Answered<F, B> = Either<MapOk<F, fn(Response<B>) -> Response<AnswerBody<B>>>, Translated<B>>;
/// The future of an answer that is translated.
type Translated<B> = Pin<Box<dyn Future<Output = Result<Response<AnswerBody<B>>, Infallible>> + Send>>;

/// How the messages of a call are written.
#[derive(Debug, Clone)]
enum Codec {
    Proto,
    /// As the messages of this method; of an unknown one there is nothing to read.
    Json(Option<MethodDescriptor>),
}

/// The form of a call in this protocol.
#[derive(Debug, Clone)]
struct Form {
    codec: Codec,
    /// Whether its messages have prefixes, and an end that follows them.
    streams: bool,
    /// For whom the bytes of its answer count.
    byte_counters: Option<ByteCounters>,
}

impl Form {
    /// The form that a content type names.
    fn of(content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let (codec, streams) = match essence.to_ascii_lowercase().as_str() {
            "application/json" => (Codec::Json(None), false),
            "application/proto" => (Codec::Proto, false),
            "application/connect+json" => (Codec::Json(None), true),
            "application/connect+proto" => (Codec::Proto, true),
            _ => return None,
        };
        Some(Self {
            codec,
            streams,
            byte_counters: None,
        })
    }

    fn content_type(&self) -> HeaderValue {
        HeaderValue::from_static(match (&self.codec, self.streams) {
            (Codec::Json(_), false) => "application/json",
            (Codec::Proto, false) => "application/proto",
            (Codec::Json(_), true) => "application/connect+json",
            (Codec::Proto, true) => "application/connect+proto",
        })
    }
}

/// Whether a request is of gRPC, also if it may not be: over HTTP/2 by default.
pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_http2 = request.version() == Version::HTTP_2;
    content_type.map_or(is_http2, |own| own.starts_with(b"application/grpc"))
}

/// Why a call is refused in the layers, where it is named, counted and logged as every call is: its headers are not
/// valid, or its method takes a stream.
#[derive(Debug, Clone)]
pub(super) struct Unprepared(pub Status);

/// A call that may enter the layers.
#[derive(Debug)]
pub(super) struct Call {
    request: Request<Body>,
    /// Absent for a call of gRPC.
    form: Option<Form>,
}

impl Call {
    /// The call that a request of this client makes. Its message may have `request_bytes`.
    ///
    /// # Errors
    /// The answer to a request that makes none.
    pub(super) fn of<B: http_body::Body>(
        mut request: Request<Body>,
        remote: &Remote,
        request_bytes: usize,
    ) -> Result<Self, Box<Response<AnswerBody<B>>>> {
        let is_grpc = is_grpc(&request);
        if request.method() != Method::POST {
            let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED, "calls are POST requests");
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return Err(Box::new(refusal));
        }
        if is_grpc && request.version() == Version::HTTP_2 {
            request.extensions_mut().insert(remote.clone());
            return Ok(Self { request, form: None });
        }
        let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let form = content_type.and_then(|own| Form::of(std::str::from_utf8(own).ok()?));
        let method = json::method(request.uri().path());
        let takes_stream = method.as_ref().is_some_and(MethodDescriptor::is_client_streaming);
        let streams = method.as_ref().map(MethodDescriptor::is_server_streaming);
        let fits = |form: &Form| takes_stream || streams.is_none_or(|streams| form.streams == streams);
        let Some(mut form) = form.filter(fits) else {
            return Err(Box::new(wrong_type(is_grpc, streams == Some(true))));
        };
        form.byte_counters = remote.usage.as_ref().map(|usage| counted(Arc::clone(&usage.answers)));
        let prepared = if takes_stream {
            Err(status::takes_stream())
        } else {
            prepare(request.headers_mut())
        };
        if let Err(status) = prepared {
            request.extensions_mut().insert(Unprepared(status));
        }
        if let Codec::Json(of) = &mut form.codec {
            *of = method;
        }
        let read = form.clone();
        let mut request = request.map(|body| Body::new(Message::new(body, read, request_bytes)));
        request.extensions_mut().insert(remote.clone());
        Ok(Self {
            request,
            form: Some(form),
        })
    }

    /// The path of its method.
    pub(super) fn path(&self) -> &str {
        self.request.uri().path()
    }

    /// Counts its answer for this stream.
    pub(super) fn count_for(&mut self, stream: Arc<UnsentAnswers>) {
        if let Some(form) = &mut self.form {
            form.byte_counters = Some(counted(Arc::clone(&stream)));
        }
        self.request.extensions_mut().insert(stream);
    }

    /// Makes the call and translates its answer.
    pub(super) fn make<F, B>(self, make: impl FnOnce(Request<Body>) -> F) -> Answered<F, B>
    where
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: http_body::Body<Data: Send, Error = Status> + Send + Unpin + 'static,
    {
        let deadline = self.form.as_ref().and_then(|_| deadline::of(self.request.headers()));
        let made = make(self.request);
        match self.form {
            None => Either::Left(made.map_ok(|response| response.map(AnswerBody::Grpc))),
            Some(form) => Either::Right(Box::pin(form.answer(made, deadline))),
        }
    }
}

fn counted(answers: Arc<UnsentAnswers>) -> ByteCounters {
    ByteCounters {
        answers,
        identity: None,
    }
}

/// The answer to a request with another content type than those of its method.
fn wrong_type<B: http_body::Body>(is_grpc: bool, streams: bool) -> Response<AnswerBody<B>> {
    let types = if streams { STREAM_TYPES } else { UNARY_TYPES };
    let problem = if is_grpc {
        format!("gRPC needs HTTP/2; over HTTP/1.1 the content-type is one of {types}")
    } else {
        format!("the content-type must be one of {types}")
    };
    let mut refusal = refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, &problem);
    let headers = refusal.headers_mut();
    headers.insert(ACCEPT_POST, HeaderValue::from_static(types));
    refusal
}

/// Makes the headers of a gRPC request of those of a Connect request.
///
/// # Errors
/// The status of a header that is not valid.
fn prepare(headers: &mut HeaderMap) -> Result<(), Status> {
    for name in [CONTENT_LENGTH, HeaderName::from_static(deadline::HEADER), GRPC_ENCODING] {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if headers.remove(PROTOCOL).is_some_and(|version| version != "1") {
        return Err(status::of(InvalidField::new("connect-protocol-version", "must be 1")));
    }
    // The service refuses each encoding but identity.
    for encoding in [headers.remove(CONTENT_ENCODING), headers.remove(STREAM_ENCODING)] {
        if let Some(encoding) = encoding.filter(|encoding| encoding != "identity") {
            headers.insert(GRPC_ENCODING, encoding);
        }
    }
    if let Some(timeout) = headers.remove(TIMEOUT) {
        let millis = timeout.to_str().ok().filter(|text| text.len() <= 10);
        let millis: Option<u64> = millis.and_then(|text| text.parse().ok());
        let problem = "must be a number of milliseconds of at most 10 digits";
        let millis = millis.ok_or_else(|| status::of(InvalidField::new("connect-timeout-ms", problem)))?;
        headers.insert(deadline::HEADER, deadline::header(Duration::from_millis(millis)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
