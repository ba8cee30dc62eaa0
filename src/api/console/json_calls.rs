//! The requests of the page: JSON in, JSON out.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use prost_reflect::MessageDescriptor;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::calls::{Calls, json_bug};
use super::overview;
use super::response::{ConsoleBody, Line, Problem, Responses};
use crate::api::first_frame::MESSAGE_LIMIT;
use crate::api::layer::CallService;
use crate::api::{json, status};
use crate::name::InvalidField;
use crate::rpc::{self, path};

/// The methods that the page calls. It takes and keeps no locks.
const METHODS: &[&str] = &[
    path::ADMIT,
    path::FORCE_RELEASE,
    path::GET_LEADER,
    path::GET_LOCK,
    path::LIST_LOCKS,
    path::LIST_NAMESPACES,
    path::LIST_SESSIONS,
    path::OBSERVE,
    path::WATCH_LOCK,
];

/// After which time without events an empty line is sent on a stream, so that the page notices a server that is gone.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// After how many empty lines in a row a stream ends. The page then opens another one. The stream of a client that is
/// gone would otherwise remain until the system gives its connection up.
const HEARTBEAT_LIMIT: u32 = 60;

/// Calls the method of this name with the request's JSON.
pub(super) async fn response<S: CallService>(
    mut calls: Calls<S>,
    name: &str,
    request: Request<Incoming>,
    responses: &Responses,
) -> Response<ConsoleBody> {
    let (head, body) = request.into_parts();
    let body = match timeout(MESSAGE_LIMIT, read(body, calls.limits.request_bytes)).await {
        Ok(Ok(body)) => body,
        Ok(Err((status, problem))) => return responses.refusal(status, problem),
        Err(_) => return responses.refusal(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
    };
    if name == overview::NAME {
        let overview = overview::overview(&mut calls, &head.headers, &body).await;
        return overview.map_or_else(|status| responses.error(&status), |json| responses.json(json));
    }
    let is_named = |method: &&&str| method.rsplit_once('/').is_some_and(|(_, found)| found == name);
    let found = METHODS.iter().find(is_named);
    let Some((&path, method)) = found.and_then(|path| Some((path, json::method(path)?))) else {
        return responses.refusal(StatusCode::NOT_FOUND, "the console has no such call");
    };
    let message = match json::encode(method.input(), &body) {
        Ok(message) => message,
        Err(mismatch) => {
            let invalid = InvalidField::new("request", mismatch.to_string());
            return responses.error(&status::of(invalid));
        }
    };
    let answer = if rpc::Method::at(path).is_some_and(|method| method.streams) {
        let messages = calls.call(path, &head.headers, message).await;
        messages.map(|messages| lines(messages, method.output(), responses.clone()))
    } else {
        let answer = calls.unary(path, &head.headers, message).await;
        let json = answer.and_then(|answer| json::line(method.output(), &answer).map_err(json_bug));
        json.map(|json| responses.json(json))
    };
    answer.unwrap_or_else(|status| responses.error(&status))
}

/// The body of a request of at most `limit` bytes.
async fn read(mut body: Incoming, limit: usize) -> Result<Bytes, (StatusCode, &'static str)> {
    let mut read = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the request is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limit {
            let problem = "the request is larger than request_bytes_limit";
            return Err((StatusCode::PAYLOAD_TOO_LARGE, problem));
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// A response with one line for each message, an empty one after [`HEARTBEAT`] without any, and as the last one the
/// error with which the stream ended.
fn lines(messages: Streaming<Bytes>, output: MessageDescriptor, responses: Responses) -> Response<ConsoleBody> {
    let own = responses.clone();
    let lines = stream::unfold(Some((messages, 0)), move |state| {
        let (output, responses) = (output.clone(), own.clone());
        async move {
            let (mut messages, heartbeats) = state?;
            let (line, heartbeats) = match timeout(HEARTBEAT, messages.message()).await {
                Err(_) => (Vec::new(), heartbeats + 1),
                Ok(Ok(None)) => return None,
                Ok(Ok(Some(message))) => match json::line(output, &message) {
                    Ok(line) => (line, 0),
                    Err(mismatch) => return last(&responses, &json_bug(mismatch)),
                },
                Ok(Err(status)) => return last(&responses, &status),
            };
            let line = responses.line(line).ok()?;
            Some((line, (heartbeats < HEARTBEAT_LIMIT).then_some((messages, heartbeats))))
        }
    });
    responses.lines(lines.boxed())
}

/// The last line of a stream.
fn last<T>(responses: &Responses, status: &Status) -> Option<(Line, Option<T>)> {
    let line = responses.line(Problem::of(status).json()).ok()?;
    Some((line, None))
}
