//! The path of every call: it is observed ([`Observed`]), its caller is identified, it gets a permit, and a service answers
//! it. What its answer keeps until it is sent is in the answer's body.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::authenticate::{Authentication, CallerState, admitted};
use super::call_metrics::CallMetrics;
use super::catch_panic::readable;
use super::concurrency_limit::{CallBody, CallTerms, Permits};
use super::connect::Unprepared;
use super::observed::Observed;
use super::request_log::RequestLog;
use super::status;
use super::verifications::VerificationTurn;
use crate::error::Error;

/// The path of calls to `inner`.
#[derive(Debug, Clone)]
pub(super) struct CallPath<S> {
    inner: S,
    metrics: CallMetrics,
    log: RequestLog,
    authentication: Authentication,
    permits: Arc<Permits>,
}

impl<S> CallPath<S> {
    /// Identifies callers by `authentication`, and limits their calls by `permits`.
    pub(super) fn new(inner: S, metrics: CallMetrics, authentication: Authentication, permits: Arc<Permits>) -> Self {
        Self {
            inner,
            metrics,
            log: RequestLog::new(),
            authentication,
            permits,
        }
    }
}

/// A call that a service answers, or the status of its refusal.
type Begun<F> = Result<(F, CallTerms), Status>;
/// A call whose caller is being verified. The next call of the connection waits until the turn is dropped.
type Verified = Pin<Box<dyn Future<Output = Result<(Request<Body>, Option<VerificationTurn>), Error>> + Send>>;
/// The body of an answer.
type AnswerBody = CallBody<Body>;

impl<S> CallPath<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    /// Begins a call whose caller is known.
    fn begin(&mut self, observed: &mut Observed, request: Request<Body>) -> Begun<S::Future> {
        observed.trace(request.uri().path(), request.headers());
        let (request, terms) = self.permits.begin(request).map_err(status::of)?;
        Ok((self.inner.call(request), terms))
    }
}

impl<S> Service<Request<Body>> for CallPath<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Unpin> + Clone + Unpin,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = OneCall<S>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> OneCall<S> {
        let metrics = self.metrics.begin_at(request.uri().path());
        let mut observed = Observed::begin(metrics, self.log.begin(&mut request));
        let unprepared: Option<Unprepared> = request.extensions_mut().remove();
        let known = match unprepared {
            Some(Unprepared(status)) => Err(status),
            None => self.authentication.caller_state(&request).map_err(status::of),
        };
        let stage = match known {
            Ok(CallerState::Known(caller)) => {
                let begun = self.begin(&mut observed, admitted(request, caller));
                Stage::Begun(begun, None)
            }
            Ok(CallerState::Unverified(caller, presented)) => {
                // The clone that is ready belongs to this call.
                let clone = self.clone();
                let path = std::mem::replace(self, clone);
                let verified = path.authentication.clone().verified(request, caller, presented);
                Stage::Verified(Box::new(path), Box::pin(verified))
            }
            Err(status) => Stage::Begun(Err(status), None),
        };
        OneCall {
            observed: Some(observed),
            stage,
            request_bytes: self.permits.request_bytes,
        }
    }
}

/// A call on its path. Dropping it cancels it.
pub(super) struct OneCall<S: Service<Request<Body>>> {
    /// Absent after the answer.
    observed: Option<Observed>,
    stage: Stage<S>,
    request_bytes: usize,
}

enum Stage<S: Service<Request<Body>>> {
    Verified(Box<CallPath<S>>, Verified),
    Begun(Begun<S::Future>, Option<VerificationTurn>),
}

impl<S> Future for OneCall<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Unpin> + Clone + Unpin,
{
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let observed = this.observed.as_mut().expect("a future is not polled after its end");
        if let Stage::Verified(path, verified) = &mut this.stage {
            let (begun, turn) = match observed.polled(|| verified.as_mut().poll(cx)) {
                Ok(verified) => match ready!(verified) {
                    Ok((request, turn)) => (path.begin(observed, request), turn),
                    Err(error) => (Err(status::of(error)), None),
                },
                Err(panicked) => (Err(panicked), None),
            };
            this.stage = Stage::Begun(begun, turn);
        }
        let Stage::Begun(begun, turn) = &mut this.stage else {
            return Poll::Pending;
        };
        let answered = match begun {
            Ok((call, _)) => observed.polled(|| Pin::new(call).poll(cx)),
            Err(refused) => Err(refused.clone()),
        };
        // The call starts before the next call of the connection continues, so that calls keep their order.
        drop(turn.take());
        let mut answer = match answered {
            Ok(answered) => readable(ready!(answered)?, this.request_bytes),
            Err(status) => status.into_http(),
        };
        let observed = this.observed.take().expect("it was polled");
        let undelivered = answer.extensions_mut().remove();
        let log = observed.ended(answer.extensions().get());
        log.name_failure(answer.headers_mut());
        let terms = begun.as_mut().map(|(_, terms)| std::mem::take(terms));
        Poll::Ready(Ok(answer.map(|body| {
            CallBody::new(body, undelivered, terms.unwrap_or_default(), log.until_trailers())
        })))
    }
}

#[cfg(test)]
mod tests;
