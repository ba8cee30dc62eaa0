//! Runs a command with the metrics, log line, trace, permit and panic handler of a unary call.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{BoxFuture, ready as done};
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

use super::events::Answer;
use crate::api::authenticate::Caller;
use crate::api::concurrency_limit::{Kind, Permit};
use crate::api::observed::Observed;
use crate::api::request_log::{self, CallName};
use crate::api::shared::Api;
use crate::api::status;
use crate::api::stream_leases::LeasePlace;
use crate::name::Secret;

/// What a command does to the attached leases when it ends.
#[derive(Debug)]
pub(super) enum AtEnd {
    Nothing,
    /// It attaches the lease that it was granted.
    Attach(LeasePlace),
    /// It attaches the leases that it was granted.
    AttachAll(Vec<LeasePlace>),
    /// It tells the new TTL of a lease, from when it was sent.
    Renewed(Secret, Instant),
}

/// A command that ended.
pub(super) struct Finished {
    pub id: u64,
    pub answer: Result<Answer, Status>,
    pub at_end: AtEnd,
}

/// What the calls of a session's commands share.
#[derive(Debug)]
pub(super) struct CallContext {
    /// The id of the session in the log.
    pub session: Arc<CallName>,
    /// The headers of the session, which may have the trace of its client.
    pub headers: HeaderMap,
}

/// A running command.
pub(super) struct CommandCall {
    id: u64,
    call: BoxFuture<'static, Result<Answer, Status>>,
    at_end: AtEnd,
    observed: Option<Observed>,
    _permit: Option<Permit>,
}

impl CommandCall {
    /// Begins a command that does what the method at this path does.
    pub(super) fn begin(
        (api, around): (&Api, &CallContext),
        caller: &Caller,
        (id, path): (u64, &'static str),
        at_end: AtEnd,
        call: BoxFuture<'static, Result<Answer, Status>>,
    ) -> Self {
        let name = CallName::Command {
            session: Arc::clone(&around.session),
            id,
        };
        let mut observed = Observed::begin(api.metrics.begin_at(path), request_log::Call::of_command(name, path));
        observed.trace(path, &around.headers);
        let (call, permit) = match api.permits.admit(Kind::of(path), Some(caller)) {
            Ok(permit) => (call, Some(permit)),
            Err(refused) => (Box::pin(done(Err(status::of(refused)))) as BoxFuture<_>, None),
        };
        Self {
            id,
            call,
            at_end,
            observed: Some(observed),
            _permit: permit,
        }
    }
}

impl Future for CommandCall {
    type Output = Finished;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let this = self.get_mut();
        let call = &mut this.call;
        let Some(observed) = &mut this.observed else {
            return Poll::Pending;
        };
        let answer = match observed.polled(|| call.as_mut().poll(cx)) {
            Ok(answered) => ready!(answered),
            Err(panicked) => Err(panicked),
        };
        if let Some(observed) = this.observed.take() {
            observed.ended(answer.as_ref().err()).succeeded();
        }
        Poll::Ready(Finished {
            id: this.id,
            answer,
            at_end: std::mem::replace(&mut this.at_end, AtEnd::Nothing),
        })
    }
}
