//! The calls of the API, each with a deadline, repeated if no server answered.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use super::connections::{CallChannel, Connections};
use super::credentials::AUTHORIZATION;
use super::error::{Error, Failed, Retryable};
use super::requests::Rpc;
use super::session::CommandFailure;
use super::session::shared::SharedSession;
use crate::backoff::Backoff;
use crate::clock;
use crate::proto;

/// The deadline of a single call that does not wait for a lock.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// The deadline of a call with all its repetitions.
const CALL_WITH_REPEATS: Duration = Duration::from_secs(10);
/// How often a call is repeated, in addition to once per address.
const REPEATS: usize = 2;
/// How often a request for locks without a wait is sent if no server answers.
const MAX_SENDS: u32 = 3;
/// How long one call waits at most before another one takes its claim over: proxies cut calls that are silent for 60 s.
const HAND_OVER: Duration = Duration::from_secs(45);
/// What is asked for where the wait is over.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// How long a stream is opened again until a server answers.
const OUTAGE: Duration = Duration::from_secs(60);
/// The pauses before repetitions, unless the server asks for others. A wait ends at most the longest one early.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// The calls of a client.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub connections: Arc<Connections>,
    session: Arc<SharedSession>,
    /// Whether streams end, because the client is closed.
    closed: watch::Sender<bool>,
}

impl Calls {
    /// Calls over these connections.
    pub(super) fn over(connections: Connections) -> Self {
        Self {
            connections: Arc::new(connections),
            session: Arc::default(),
            closed: watch::Sender::new(false),
        }
    }

    /// Ends all streams with [`Error::Closed`].
    pub(super) fn end_streams(&self) {
        self.closed.send_replace(true);
    }

    /// Sends a request once and waits at most `limit` for the response. A channel without a response is replaced. If
    /// the credentials are rejected and the file now contains another bearer token, the request is sent again with it.
    ///
    /// A request that is a command too is sent over the session, if there is one.
    pub(super) async fn once<R: Rpc>(&self, limit: Duration, request: R) -> Result<R::Answer, Failed> {
        if !request.is_shared() {
            return self.send_alone(limit, request).await;
        }
        let channel = self.connections.channel();
        let _in_flight = self.session.begin_call();
        let token = self.connections.token().await?;
        if let Some(session) = self.session.session(&self.connections, &channel, token.as_ref())
            && let Some(command) = request.command()
            && let Some(place) = session.place(&command)
        {
            match session.call(command, Some(place), Some(limit)).await {
                Ok(outcome) => return R::answer(outcome).ok_or_else(Failed::incomplete),
                Err(CommandFailure::NotSent) => {}
                Err(CommandFailure::Answered(failed)) => return Err(self.failed_on(&channel, failed)),
                Err(CommandFailure::Unanswered(failed)) => {
                    let failed = self.failed_on(&channel, failed);
                    // The request may be sent again, whatever ended the session.
                    let retry = Retryable::Elsewhere;
                    return Err(Failed { retry, ..failed });
                }
            }
        }
        self.send_alone(limit, request).await
    }

    /// Sends a request as a call of its own.
    async fn send_alone<R: Rpc>(&self, limit: Duration, request: R) -> Result<R::Answer, Failed> {
        let channel = match request.waits() {
            true => self.connections.channel_for_waits(),
            false => self.connections.channel(),
        };
        self.send_once(&channel, limit, request).await
    }

    async fn send_once<R: Rpc>(&self, channel: &CallChannel, limit: Duration, request: R) -> Result<R::Answer, Failed> {
        let response = self.send_with_credentials(Some(limit), channel, request, R::send);
        self.response(channel, limit, response).await
    }

    /// A failure of this channel, which is replaced if that helps.
    fn failed_on(&self, channel: &CallChannel, failed: Failed) -> Failed {
        self.replace_channel(channel, &failed);
        failed
    }

    /// Opens a stream on this channel, like [`Calls::once`]. The deadline of a call applies to what `send` awaits, not
    /// to the stream.
    pub(super) async fn open<R: Clone, A, F>(
        &self,
        channel: &CallChannel,
        request: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<A, Failed>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let response = self.send_with_credentials(None, channel, request, send);
        self.response(channel, CALL, response).await
    }

    async fn response<A>(
        &self,
        channel: &CallChannel,
        limit: Duration,
        response: impl Future<Output = Result<Result<Response<A>, Status>, Error>>,
    ) -> Result<A, Failed> {
        let failed = match timeout(limit, response).await {
            Ok(Ok(Ok(response))) => return Ok(response.into_inner()),
            Ok(Ok(Err(status))) => Failed::of(&status, &channel.address),
            Ok(Err(unusable)) => return Err(unusable.into()),
            Err(_) => channel.no_response(limit),
        };
        Err(self.failed_on(channel, failed))
    }

    /// Sends a request, and once more if the credentials are rejected and there is another bearer token.
    async fn send_with_credentials<R: Clone, A, F>(
        &self,
        limit: Option<Duration>,
        channel: &CallChannel,
        message: R,
        send: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<Result<Response<A>, Status>, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let end = limit.map(|limit| clock::since_boot() + limit);
        let request = self.request(message.clone(), end).await?;
        let presented = request.metadata().get(AUTHORIZATION).cloned();
        let response = send(channel.channel.clone(), request).await;
        match &response {
            Err(status) if status.code() == Code::Unauthenticated => {}
            _ => return Ok(response),
        }
        if !self.connections.has_another(presented.as_ref()).await {
            return Ok(response);
        }
        let retry = self.request(message, end).await?;
        Ok(send(channel.channel.clone(), retry).await)
    }

    /// A request with credentials and a deadline.
    async fn request<R>(&self, message: R, end: Option<Duration>) -> Result<Request<R>, Error> {
        let mut request = self.connections.request(message).await?;
        if let Some(end) = end {
            request.set_timeout(end.saturating_sub(clock::since_boot()));
        }
        Ok(request)
    }

    /// Replaces the channel after a failure. If a server has answered, only if there is another address.
    pub(super) fn replace_channel(&self, channel: &CallChannel, failed: &Failed) {
        let elsewhere = match failed.retry {
            Retryable::Elsewhere => true,
            Retryable::Later => self.connections.count() > 1,
            Retryable::LaterHere | Retryable::Never => false,
        };
        if elsewhere {
            self.connections.replace_channel(channel, &failed.error);
        }
    }

    /// The error for the caller: if no server answered, with all addresses.
    pub(super) fn error(&self, failed: Failed) -> Error {
        match failed.error {
            Error::Unreachable { problem, .. } => Error::Unreachable {
                addresses: self.connections.addresses(),
                problem,
            },
            error => error,
        }
    }

    /// Repeats a request until a server answers, or its number of attempts or its deadline is reached.
    pub(super) async fn call<R: Rpc>(&self, request: R) -> Result<R::Answer, Error> {
        self.call_within(CALL_WITH_REPEATS, request).await
    }

    async fn call_within<R: Rpc>(&self, limit: Duration, request: R) -> Result<R::Answer, Error> {
        let end = clock::since_boot() + limit;
        let mut attempts = self.connections.count() + REPEATS;
        let mut backoff = BACKOFF;
        loop {
            let left = end.saturating_sub(clock::since_boot());
            let failed = match self.once(CALL.min(left), request.clone()).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            attempts -= 1;
            let pause = failed.pause(&mut backoff);
            let is_too_late = clock::since_boot() + pause >= end;
            if failed.retry != Retryable::Elsewhere || attempts == 0 || is_too_late {
                return Err(self.error(failed));
            }
            sleep(pause).await;
        }
    }

    /// Sends a request for locks until it is answered, or until its wait is over or a repetition cannot succeed. A call
    /// without a wait, or whose wait is over, is repeated only if no server answers, the latter once at each other address.
    /// `request` gets what is left of the wait, and `complete` takes what is needed from an answer. Returns also when the
    /// answered request was sent.
    pub(super) async fn acquire<R: Rpc, T>(
        &self,
        wait: Duration,
        request: impl Fn(Option<prost_types::Duration>) -> R,
        complete: impl Fn(R::Answer) -> Option<T>,
    ) -> Result<(T, Duration), Error> {
        let end = clock::since_boot() + wait;
        let (mut sends, mut backoff) = (MAX_SENDS, BACKOFF);
        let mut other_addresses = self.connections.count().saturating_sub(1);
        // The first call asks for the whole wait, so that an error shows it as the caller wrote it.
        let mut left = wait;
        loop {
            let (sent, answered) = match wait.is_zero() {
                true => (clock::since_boot(), self.once(CALL, request(None)).await),
                false => self.wait_in_calls(left, &request).await,
            };
            let failed = match answered.and_then(|answer| complete(answer).ok_or_else(Failed::incomplete)) {
                Ok(granted) => return Ok((granted, sent)),
                Err(failed) => failed,
            };
            sends = sends.saturating_sub(1);
            let pause = failed.pause(&mut backoff);
            let may_resend = sends > 0 && wait.is_zero() && failed.retry == Retryable::Elsewhere;
            let may_wait = failed.retry != Retryable::Never && clock::since_boot() + pause < end;
            if may_resend || may_wait {
                sleep(pause).await;
                left = end.saturating_sub(clock::since_boot());
                continue;
            }
            // A server that hangs takes the whole wait, though another one may live.
            if failed.retry != Retryable::Elsewhere || wait.is_zero() || other_addresses == 0 {
                return Err(self.error(failed));
            }
            other_addresses -= 1;
            left = end.saturating_sub(clock::since_boot());
        }
    }

    /// Waits for locks, after each 45 s in one more call with the same request id, which takes the claim over: the claim
    /// keeps its place when a proxy cuts the call before. Returns also when the answered call was sent.
    async fn wait_in_calls<R: Rpc>(
        &self,
        wait: Duration,
        request: &impl Fn(Option<prost_types::Duration>) -> R,
    ) -> (Duration, Result<R::Answer, Failed>) {
        let end = clock::since_boot() + wait;
        // The first call asks for exactly the wait.
        let (mut left, mut calls) = (wait, FuturesUnordered::new());
        loop {
            let sent = clock::since_boot();
            // A call that waits never becomes a try, whose errors differ.
            let asked = wire(left.max(SHORTEST_WAIT));
            let answered = self.once(left + CALL, request(Some(asked)));
            calls.push(answered.map(move |answered| (sent, answered)));
            let (newest, hand_over) = (sent, sent + HAND_OVER);
            loop {
                let next = timeout(hand_over.saturating_sub(clock::since_boot()), calls.next());
                match next.await {
                    // A later call waits in its place.
                    Ok(Some((sent, Err(_)))) if sent < newest && !calls.is_empty() => {}
                    Ok(Some(answered)) => return answered,
                    Ok(None) | Err(_) => break,
                }
            }
            left = end.saturating_sub(clock::since_boot());
        }
    }

    /// Sends one renewal, with the deadline `limit`.
    pub(super) async fn renew_once(&self, limit: Duration, lease_id: &str) -> Result<proto::Lease, Failed> {
        let response = self.once(limit, renewal(lease_id, None)).await?;
        response.lease.ok_or_else(Failed::incomplete)
    }

    /// Extends a lease to `ttl`; absent: the TTL last requested.
    pub(super) async fn renew(&self, lease_id: &str, ttl: Option<Duration>) -> Result<proto::Lease, Error> {
        let response = self.call(renewal(lease_id, ttl)).await?;
        response.lease.ok_or_else(|| Failed::incomplete().error)
    }

    /// Releases a lease that ends at the latest in `left`, which also limits the repetitions, as do 5 s.
    pub(super) async fn release(&self, lease_id: &str, left: Duration) -> Result<(), Error> {
        let request = proto::ReleaseRequest {
            lease_id: lease_id.to_owned(),
            keep_for: None,
        };
        self.call_within(CALL.min(left), request).await.map(drop)
    }

    /// Opens a stream, whose first message is the present state. A stream that its server or the network ends is opened
    /// again, for [`OUTAGE`] at most; it ends with its first other error, or when the client is closed.
    pub(super) async fn open_stream<R, M>(
        self: &Arc<Self>,
        request: R,
    ) -> Result<BoxStream<'static, Result<M, Error>>, Error>
    where
        R: Rpc<Answer = Streaming<M>> + Send + Sync + 'static,
        M: Send + 'static,
    {
        let opened = self.open_once(request.clone()).await;
        let open = opened.map_err(|failed| self.error(failed))?;
        let calls = Arc::clone(self);
        let messages = stream::unfold(Some(open), move |open| {
            let (calls, request) = (Arc::clone(&calls), request.clone());
            async move {
                let open = open?;
                let mut closed = calls.closed.subscribe();
                Some(tokio::select! {
                    biased;
                    _ = closed.wait_for(|is_closed| *is_closed) => (Err(Error::Closed), None),
                    next = calls.next_message(open, &request) => next,
                })
            }
        });
        Ok(messages.boxed())
    }

    /// The next message of a stream, and the stream unless it has ended with this error.
    async fn next_message<R, M>(
        &self,
        mut open: OpenStream<M>,
        request: &R,
    ) -> (Result<M, Error>, Option<OpenStream<M>>)
    where
        R: Rpc<Answer = Streaming<M>>,
        M: Send + 'static,
    {
        loop {
            let failed = match open.messages.next().await {
                Some(Ok(message)) => return (Ok(message), Some(open)),
                Some(Err(status)) => Failed::of(&status, &open.channel.address),
                None => Failed::no_response(&open.channel.address, "the stream ended"),
            };
            self.replace_channel(&open.channel, &failed);
            match self.open_again(request, failed).await {
                Ok(again) => open = again,
                Err(failed) => return (Err(self.error(failed)), None),
            }
        }
    }

    /// Opens a stream again that failed so.
    async fn open_again<R, M>(&self, request: &R, failed: Failed) -> Result<OpenStream<M>, Failed>
    where
        R: Rpc<Answer = Streaming<M>>,
        M: Send + 'static,
    {
        let (mut last, mut backoff) = (failed, BACKOFF);
        let opened = timeout(OUTAGE, async {
            while last.retry != Retryable::Never {
                sleep(last.pause(&mut backoff)).await;
                match self.open_once(request.clone()).await {
                    Ok(open) => return Some(open),
                    Err(failed) => last = failed,
                }
            }
            None
        });
        opened.await.ok().flatten().ok_or(last)
    }

    /// Opens a stream. The deadline applies to the first message; the others follow at each change.
    async fn open_once<R, M>(&self, request: R) -> Result<OpenStream<M>, Failed>
    where
        R: Rpc<Answer = Streaming<M>>,
        M: Send + 'static,
    {
        let channel = self.connections.channel();
        let opened = self.open(&channel, request, |channel, request| async move {
            let mut messages = R::send(channel, request).await?.into_inner();
            Ok(Response::new((messages.next().await, messages)))
        });
        let (first, messages) = opened.await?;
        let messages = stream::iter(first).chain(messages).boxed();
        Ok(OpenStream { channel, messages })
    }
}

/// A stream that is open on a channel.
struct OpenStream<M> {
    channel: CallChannel,
    messages: BoxStream<'static, Result<M, Status>>,
}

fn renewal(lease_id: &str, ttl: Option<Duration>) -> proto::RenewRequest {
    proto::RenewRequest {
        lease_id: lease_id.to_owned(),
        ttl: ttl.map(wire),
    }
}

/// Converts a duration for the API. One that is too long becomes the maximum, which the server rejects.
pub fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A duration of a response; zero if absent.
pub fn time(wire: Option<impl TryInto<Duration>>) -> Duration {
    wire.and_then(|wire| wire.try_into().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
