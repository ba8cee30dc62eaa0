//! `KeepAlive`: passes the beats of a stream to the keeper of its leases ([`LeaseKeeper`]), and converts the messages.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt};
use tokio::task::yield_now;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Request, Response, Status, Streaming};

use super::access::GuardedNamespaces;
use super::authenticate::Caller;
use super::catch_panic::unreadable;
use super::concurrency_limit::{BEAT_BYTES, Permit};
use super::lease_keeper::{LeaseKeeper, StreamName};
use super::open_streams::OpenStream;
use super::proto::keep_alive_response::{Ask, Event, Kept, Lost};
use super::proto::{KeepAliveRequest, KeepAliveResponse, SessionKind};
use super::request_log::CallName;
use super::shared::{Api, Messages};
use super::{convert, status};
use crate::error::Error;
use crate::name::{InvalidField, MAX_LEASE_ID_BYTES};
use crate::rpc::path;
use crate::session::{KeptLeases, Message};

/// How many leases a stream keeps at most.
const LEASES: usize = 1_000;
// Each id takes three bytes more, and the number of the beat 11.
const _: () = assert!(LEASES * (MAX_LEASE_ID_BYTES + 3) + 11 <= BEAT_BYTES);

/// Opens the stream of a caller that may open it.
pub(super) fn open(
    api: Arc<Api>,
    request: Request<Streaming<KeepAliveRequest>>,
) -> Result<Response<Messages<KeepAliveResponse>>, Error> {
    let (_, mut extensions, requests) = request.into_parts();
    let caller = Caller::of(&mut extensions);
    let open = api.guarded.to_keep(SessionKind::KeepAlive, &caller, extensions.get())?;
    let kept = KeepAliveStream::new(api, caller, extensions.remove(), requests, open);
    Ok(Response::new(kept.messages().boxed()))
}

/// A KeepAlive call.
struct KeepAliveStream {
    api: Arc<Api>,
    caller: Caller,
    requests: Streaming<KeepAliveRequest>,
    keeper: LeaseKeeper,
    unauthenticated: Pin<Box<dyn Future<Output = Error> + Send>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    has_ended: bool,
    permit: Option<Permit>,
    _open: OpenStream,
}

/// What happens next on a stream.
enum Next {
    Beat(KeepAliveRequest),
    /// The client has no more beats.
    End,
    Broken(Status),
    Stopped(Error),
    /// Something about its leases.
    Progress,
}

impl KeepAliveStream {
    fn new(
        api: Arc<Api>,
        caller: Caller,
        call: Option<CallName>,
        requests: Streaming<KeepAliveRequest>,
        open: OpenStream,
    ) -> Self {
        let stream = StreamName {
            method: path::KEEP_ALIVE,
            id: call,
        };
        Self {
            unauthenticated: Box::pin(GuardedNamespaces::until_unauthenticated(caller.clone())),
            draining: Box::pin(api.permits.drain_of(Some(&caller)).clone().cancelled_owned()),
            keeper: LeaseKeeper::new(
                Arc::clone(&api),
                caller.clone(),
                stream,
                KeptLeases::named(),
                Arc::clone(&open.state.leases),
            ),
            api,
            caller,
            requests,
            has_ended: false,
            permit: None,
            _open: open,
        }
    }

    /// The messages for the client. Nothing happens while it does not read them.
    fn messages(self) -> impl Stream<Item = Result<KeepAliveResponse, Status>> + Send {
        stream::unfold(self, |mut stream| async move {
            let message = stream.message().await?;
            Some((message, stream))
        })
    }

    /// The next message; `None` after the last one.
    async fn message(&mut self) -> Option<Result<KeepAliveResponse, Status>> {
        loop {
            if let Some(message) = self.keeper.message() {
                return Some(Ok(encoded(message)));
            }
            if self.has_ended && !self.keeper.is_beating() {
                return None;
            }
            match self.next().await {
                Next::Beat(beat) => {
                    if let Err(error) = self.begin(beat).await {
                        return self.failed(status::of(error));
                    }
                }
                Next::End => self.has_ended = true,
                Next::Broken(status) => {
                    let limit = BEAT_BYTES.max(self.api.request_bytes);
                    let status = unreadable(&status, limit).unwrap_or(status);
                    return self.failed(status);
                }
                Next::Stopped(error) => return self.failed(status::of(error)),
                Next::Progress => {}
            }
        }
    }

    /// Ends the stream with a status.
    fn failed(&mut self, status: Status) -> Option<Result<KeepAliveResponse, Status>> {
        self.has_ended = true;
        self.keeper.end();
        Some(Err(status))
    }

    async fn next(&mut self) -> Next {
        let may_read = !self.has_ended && !self.keeper.is_beating();
        tokio::select! {
            biased;
            () = &mut self.draining => Next::Stopped(Error::Draining),
            error = &mut self.unauthenticated => Next::Stopped(error),
            () = self.keeper.progress() => Next::Progress,
            request = self.requests.message(), if may_read => match request {
                Ok(Some(beat)) => Next::Beat(beat),
                Ok(None) => Next::End,
                Err(status) => Next::Broken(status),
            },
        }
    }

    /// Begins a beat under the rules of this moment.
    async fn begin(&mut self, beat: KeepAliveRequest) -> Result<(), Error> {
        // Beats without pause leave other calls their turn.
        yield_now().await;
        let count = beat.lease_ids.len();
        if count > LEASES {
            let problem = format!("must be at most {LEASES} on one stream, not {count}");
            return Err(InvalidField::new("lease_ids", problem).into());
        }
        self.caller = GuardedNamespaces::current(&self.caller).await?;
        self.keeper.set_caller(self.caller.clone());
        self.permit = None;
        self.permit = Some(self.api.permits.keep(count, &self.caller)?);
        self.keeper.begin_named(beat.beat, beat.lease_ids)
    }
}

fn encoded(message: Message) -> KeepAliveResponse {
    let event = match message {
        Message::Ask => Event::Ask(Ask {}),
        Message::Kept { beat, ttls, .. } => Event::Kept(Kept {
            beat,
            ttls: ttls.into_iter().map(convert::wire_duration).collect(),
        }),
        Message::Lost { lease_id, error } => {
            let (reason, cause) = status::reason_and_cause(&error);
            Event::Lost(Lost {
                lease_id,
                reason,
                cause,
            })
        }
    };
    KeepAliveResponse { event: Some(event) }
}
