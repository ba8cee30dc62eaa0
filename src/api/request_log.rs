//! Gives each call an id and logs one line per finished call at `debug`; at `info` and above only
//! internal errors are logged.

use std::cell::RefCell;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use parking_lot::Mutex;
use tonic::{Code, Status};
use tracing::Level;

use super::call_metrics::end_of;
use super::peer::Peer;
use super::status;
use crate::error::{Error, with_causes};
use crate::name::Identity;

/// The header with which a caller names its call, and with which an error returns the name.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id accepted from a caller, in bytes.
const MAX_ID_BYTES: usize = 128;
/// The maximum length of a caller's own text in a line, in bytes: the length of the longest name.
const QUOTED_BYTES: usize = 512;

thread_local! {
    /// The subject of the call that is being polled, if it is wanted.
    static CURRENT: RefCell<Option<Arc<Mutex<Subject>>>> = const { RefCell::new(None) };
}

/// What a call is about, and who made it.
#[derive(Debug, Clone, Default)]
pub(super) struct Subject {
    pub namespace: Option<String>,
    pub lock: Option<String>,
    pub identity: Option<String>,
    pub peer: Option<String>,
}

impl Subject {
    /// Notes the subject of the call that is being polled: the first lock of several.
    pub(super) fn note((identity, peer): (&Identity, Option<Peer>), namespace: Option<&str>, lock: Option<&str>) {
        CURRENT.with_borrow(|current| {
            let Some(current) = current else { return };
            let mut subject = current.lock();
            if subject.identity.is_none() {
                *subject = Self {
                    namespace: namespace.map(|name| truncated(name).to_owned()),
                    lock: lock.map(|name| truncated(name).to_owned()),
                    identity: Some(identity.as_str().to_owned()),
                    peer: peer.map(|peer| peer.to_string()),
                };
            }
        });
    }
}

/// The text, truncated to [`QUOTED_BYTES`].
pub(super) fn truncated(text: &str) -> &str {
    let end = (0..=text.len().min(QUOTED_BYTES)).rfind(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// The id of a call in the log: the caller's own, or a generated one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallName {
    /// The caller's id, if it is short and has only plain characters.
    Given(HeaderValue),
    /// The server's run and the call's number in it.
    Made {
        /// Random, so that the ids of two runs differ.
        run: u32,
        /// Counts from 0.
        number: u64,
    },
    /// A command of a session.
    Command {
        /// The id of the session.
        session: Arc<Self>,
        /// The client's id of the command.
        id: u64,
    },
}

impl CallName {
    fn given(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(REQUEST_ID)?;
        let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(b);
        let fits = (1..=MAX_ID_BYTES).contains(&name.len()) && name.as_bytes().iter().all(is_plain);
        fits.then(|| Self::Given(name.clone()))
    }

    fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::Given(name) => Some(name.clone()),
            made @ (Self::Made { .. } | Self::Command { .. }) => HeaderValue::try_from(made.to_string()).ok(),
        }
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(name) => f.write_str(name.to_str().unwrap_or_default()),
            Self::Made { run, number } => write!(f, "{run:08x}-{number}"),
            Self::Command { session, id } => write!(f, "{session}/{id}"),
        }
    }
}

/// Gives calls ids and logs their ends.
#[derive(Debug, Clone)]
pub(super) struct RequestLog {
    run: u32,
    numbers: Arc<AtomicU64>,
}

impl RequestLog {
    /// A log with the ids of a new run.
    pub(super) fn new() -> Self {
        Self {
            // Without random bytes, ids may repeat between runs, which is acceptable in a log.
            run: getrandom::u32().unwrap_or_default(),
            numbers: Arc::default(),
        }
    }

    fn name(&self, headers: &HeaderMap) -> CallName {
        CallName::given(headers).unwrap_or_else(|| CallName::Made {
            run: self.run,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Begins a call, and names it for its handler.
    pub(super) fn begin<R>(&self, request: &mut Request<R>) -> Call {
        let name = self.name(request.headers());
        request.extensions_mut().insert(name.clone());
        Call::new(name, CallPath::Requested(request.uri().clone()))
    }
}

/// The path of a call's method.
#[derive(Debug)]
enum CallPath {
    Requested(Uri),
    Known(&'static str),
}

impl CallPath {
    fn as_str(&self) -> &str {
        match self {
            Self::Requested(uri) => uri.path(),
            Self::Known(path) => path,
        }
    }
}

/// A call in the log; dropping it writes its line.
#[derive(Debug)]
pub(super) struct Call {
    name: CallName,
    method: CallPath,
    began: Instant,
    /// The status code; absent while the call can still be cancelled.
    code: Option<Code>,
    /// The reason of a failure, if the line is logged.
    reason: Option<String>,
    trace_id: Option<String>,
    /// Absent if neither a line nor a trace wants it.
    subject: Option<Arc<Mutex<Subject>>>,
    /// Whether the line is logged.
    is_logged: bool,
}

impl Call {
    /// The command of a session that does what the method at this path does.
    pub(super) fn of_command(name: CallName, path: &'static str) -> Self {
        Self::new(name, CallPath::Known(path))
    }

    /// Ends the call with the status of its failure.
    pub(super) fn ended(&mut self, status: Option<&Status>) {
        let Some(status) = status else { return };
        self.note_failure(status);
        if status.code() == Code::Internal {
            bug(&self.name, self.method.as_str(), status);
        }
    }

    /// Names the call in the headers of its failure.
    pub(super) fn name_failure(&self, headers: &mut HeaderMap) {
        if let Some(name) = self.code.and_then(|_| self.name.header()) {
            headers.insert(REQUEST_ID, name);
        }
    }

    /// The same call if its line is logged, until its trailers tell its status.
    pub(super) fn until_trailers(self) -> Option<Self> {
        self.is_logged.then_some(self)
    }

    fn note_failure(&mut self, status: &Status) {
        self.code = Some(status.code());
        self.reason = (self.is_logged && status.code() != Code::Ok).then(|| end_of(Some(status)).1);
    }

    /// Notes the status in the trailers.
    pub(super) fn read_trailers(&mut self, trailers: &HeaderMap) {
        match status::failure(trailers) {
            Some(status) => self.note_failure(&status),
            None if trailers.contains_key(Status::GRPC_STATUS) => self.code = Some(Code::Ok),
            None => {}
        }
    }

    /// Notes the trace of the call.
    pub(super) fn traced(&mut self, trace_id: String) {
        self.trace_id = Some(trace_id);
        self.subject.get_or_insert_default();
    }

    /// Polls the call, whose subject may be noted meanwhile.
    pub(super) fn polled<T>(&self, poll: impl FnOnce() -> T) -> T {
        let Some(subject) = &self.subject else { return poll() };
        let before = CURRENT.replace(Some(Arc::clone(subject)));
        let polled = poll();
        CURRENT.set(before);
        polled
    }

    /// What the call is about, as far as that was noted.
    pub(super) fn subject(&self) -> Subject {
        self.subject
            .as_ref()
            .map(|subject| subject.lock().clone())
            .unwrap_or_default()
    }

    /// The id of the call.
    pub(super) fn name(&self) -> &CallName {
        &self.name
    }

    /// Ends the call of a command without a failure.
    pub(super) fn succeeded(mut self) {
        self.code.get_or_insert(Code::Ok);
    }

    fn new(name: CallName, method: CallPath) -> Self {
        let is_logged = tracing::enabled!(Level::DEBUG);
        Self {
            name,
            method,
            began: Instant::now(),
            code: None,
            reason: None,
            trace_id: None,
            subject: is_logged.then(Arc::default),
            is_logged,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.is_logged {
            let subject = self.subject();
            tracing::debug!(
                method = self.method.as_str(),
                id = %self.name,
                namespace = subject.namespace,
                lock = subject.lock,
                identity = subject.identity,
                peer = subject.peer,
                code = ?self.code.unwrap_or(Code::Cancelled),
                reason = self.reason,
                elapsed_ms = self.began.elapsed().as_secs_f64() * 1e3,
                trace_id = self.trace_id,
                "call finished"
            );
        }
    }
}

/// Logs an internal error once, with the details that its caller does not receive.
pub(super) fn bug(name: &CallName, method: &str, status: &Status) {
    let error = status.source().map_or_else(|| status.message().to_owned(), with_causes);
    tracing::error!(%error, method, id = %name, "a call met a bug");
}

/// The status of an error that the layers do not see, because it ends a stream or is one result of several. An internal
/// one is logged here.
pub(super) fn logged(error: Error, call: Option<&CallName>, method: &str) -> Status {
    let status = status::of(error);
    if let (Code::Internal, Some(call)) = (status.code(), call) {
        bug(call, method, &status);
    }
    status
}

#[cfg(test)]
mod tests;
