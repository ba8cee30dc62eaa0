//! The responses of the console, each with headers that limit what its page can do.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures::stream::{BoxStream, StreamExt};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use tonic::{Code, Status};

use super::files::File;
use crate::api::capacity::{ByteCounters, CountedData};
use crate::api::connection::Remote;
use crate::api::status;
use crate::error::Error;

/// What the page may load and do: its own files and calls, no inline code, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 8] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    ),
];

/// The type of one JSON text.
const JSON: &str = "application/json";
/// The type of a JSON text in each line.
pub(super) const JSON_LINES: &str = "application/x-ndjson";

/// Bytes of a response, which count as unsent until they are written to the socket.
pub(super) type Line = CountedData<Bytes>;

/// The body of a response.
pub(super) struct ConsoleBody {
    content: Content,
    /// What the request holds until its response has been passed on.
    _answering: Option<Arc<()>>,
}

enum Content {
    /// All of it.
    Whole(Option<Line>),
    /// The lines of a stream.
    Lines(BoxStream<'static, Line>),
}

impl ConsoleBody {
    /// The same body, which holds this until its end.
    pub(super) fn with(self, answering: Arc<()>) -> Self {
        Self {
            _answering: Some(answering),
            ..self
        }
    }
}

impl From<Content> for ConsoleBody {
    fn from(content: Content) -> Self {
        Self {
            content,
            _answering: None,
        }
    }
}

impl Body for ConsoleBody {
    type Data = Line;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Line>, Infallible>>> {
        match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Lines(lines) => lines
                .poll_next_unpin(cx)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                let bytes = bytes.as_ref().map_or(0, Buf::remaining);
                SizeHint::with_exact(bytes.try_into().unwrap_or(u64::MAX))
            }
            Content::Lines(_) => SizeHint::default(),
        }
    }
}

/// An error as the page gets it.
#[derive(Debug, Serialize)]
pub(super) struct Problem<'a> {
    /// The reason of the API's error, such as `PERMISSION_DENIED`.
    reason: String,
    /// For people.
    message: &'a str,
}

impl<'a> Problem<'a> {
    /// The problem that a status describes.
    pub(super) fn of(status: &'a Status) -> Self {
        Self {
            reason: status::reason(status).unwrap_or_else(|| format!("{:?}", status.code()).to_ascii_uppercase()),
            message: status.message(),
        }
    }

    /// The problem as a JSON object `{"error": {..}}`.
    pub(super) fn json(&self) -> Vec<u8> {
        serde_json::json!({ "error": self }).to_string().into_bytes()
    }
}

/// Builds the responses of one connection.
#[derive(Debug, Clone)]
pub(super) struct Responses {
    byte_counters: Option<ByteCounters>,
}

impl Responses {
    /// The responses of the connection of this client.
    pub(super) fn new(remote: &Remote) -> Self {
        let usage = remote.usage.as_ref();
        Self {
            byte_counters: usage.map(|usage| ByteCounters {
                answers: usage.answers.clone(),
                identity: None,
            }),
        }
    }

    /// A file of the page.
    pub(super) fn file(&self, file: &'static File) -> Response<ConsoleBody> {
        self.response(StatusCode::OK, file.content_type, Bytes::from_static(file.content))
    }

    /// The result of a call.
    pub(super) fn json(&self, json: Vec<u8>) -> Response<ConsoleBody> {
        self.response(StatusCode::OK, JSON, json.into())
    }

    /// The results of a stream.
    pub(super) fn lines(&self, lines: BoxStream<'static, Line>) -> Response<ConsoleBody> {
        with_headers(StatusCode::OK, JSON_LINES, Content::Lines(lines))
    }

    /// The response to a request that is no call.
    pub(super) fn refusal(&self, status: StatusCode, message: &str) -> Response<ConsoleBody> {
        let problem = Problem {
            reason: "REFUSED".into(),
            message,
        };
        let mut response = self.response(status, JSON, problem.json().into());
        if status == StatusCode::METHOD_NOT_ALLOWED {
            let methods = if message.contains("POST") { "POST" } else { "GET, HEAD" };
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
        }
        response
    }

    /// The error of a call.
    pub(super) fn error(&self, status: &Status) -> Response<ConsoleBody> {
        self.response(http_status(status.code()), JSON, Problem::of(status).json().into())
    }

    /// A line of a stream.
    ///
    /// # Errors
    /// OVERLOADED if the client has too many unread bytes.
    pub(super) fn line(&self, mut line: Vec<u8>) -> Result<Line, Error> {
        line.push(b'\n');
        CountedData::new(line.into(), self.byte_counters.as_ref())
    }

    fn response(&self, status: StatusCode, content_type: &'static str, body: Bytes) -> Response<ConsoleBody> {
        match CountedData::new(body, self.byte_counters.as_ref()) {
            Ok(body) => with_headers(status, content_type, Content::Whole(Some(body))),
            Err(_) => with_headers(StatusCode::SERVICE_UNAVAILABLE, JSON, Content::Whole(None)),
        }
    }
}

fn with_headers(status: StatusCode, content_type: &'static str, content: Content) -> Response<ConsoleBody> {
    let mut response = Response::new(ConsoleBody::from(content));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The HTTP status of a gRPC code.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound | Code::Unimplemented => StatusCode::NOT_FOUND,
        Code::Aborted | Code::AlreadyExists | Code::FailedPrecondition => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => StatusCode::SERVICE_UNAVAILABLE,
        Code::Internal | Code::Unknown | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
