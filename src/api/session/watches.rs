//! The watches of a session: their messages are events of the session until they are cancelled.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::{self, AbortHandle, BoxStream, SelectAll, Stream, StreamExt, TryStreamExt, abortable};
use tonic::{Request, Status};

use super::Session;
use super::events::{event, failed, result};
use crate::api::authenticate::Caller;
use crate::api::concurrency_limit::Kind;
use crate::api::observed::Observed;
use crate::api::proto::session_command::Observe;
use crate::api::proto::session_event::{Event, Leader, Observed as ObservedLeader, Watched as WatchedLock};
use crate::api::proto::{self, ObserveRequest, WatchLockRequest};
use crate::api::request_log::{self, CallName};
use crate::api::status;
use crate::error::Error;
use crate::rpc::path;

/// How many watches a session may have.
const WATCHES: usize = 100;

/// See the module.
#[derive(Default)]
pub(super) struct Watches {
    events: SelectAll<BoxStream<'static, Watched>>,
    open: HashMap<u64, (AbortHandle, Observed)>,
}

/// What a watch tells.
pub(super) enum Watched {
    Event(Event),
    /// It has ended, maybe after it was told so.
    Ended(u64, Status),
}

/// What to watch.
pub(super) enum Watch {
    Lock(WatchLockRequest),
    Election(Observe),
}

impl Watch {
    fn path(&self) -> &'static str {
        match self {
            Self::Lock(_) => path::WATCH_LOCK,
            Self::Election(_) => path::OBSERVE,
        }
    }
}

impl Watches {
    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether the watch of this id is open.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.open.contains_key(&id)
    }

    /// What a watch tells next; absent if none is open.
    ///
    /// # Cancellation safety
    /// Safe: nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Watched> {
        self.events.next().await
    }

    /// Ends a watch; its result follows.
    pub(super) fn cancel(&self, id: u64) {
        if let Some((handle, _)) = self.open.get(&id) {
            handle.abort();
        }
    }

    /// Ends all watches; their results follow.
    pub(super) fn cancel_all(&self) {
        self.open.values().for_each(|(handle, _)| handle.abort());
    }

    fn add<S>(&mut self, id: u64, events: S, observed: Observed)
    where
        S: Stream<Item = Result<Event, Status>> + Send + 'static,
    {
        let (events, handle) = abortable(events);
        let events = events.map(move |event| event.map_or_else(|status| Watched::Ended(id, status), Watched::Event));
        let end = stream::once(async move { Watched::Ended(id, status::wait_cancelled()) });
        // One end: another command may have the id afterwards.
        let mut is_over = false;
        let events = events.chain(end).take_while(move |watched| {
            let goes_on = !is_over;
            is_over = matches!(watched, Watched::Ended(..));
            std::future::ready(goes_on)
        });
        self.events.push(events.boxed());
        self.open.insert(id, (handle, observed));
    }
}

impl Session {
    /// Begins a watch, or answers why not.
    pub(super) fn watch(&mut self, id: u64, watch: Watch) {
        let name = CallName::Command {
            session: Arc::clone(&self.around.session),
            id,
        };
        let path = watch.path();
        let call = request_log::Call::of_command(name, path);
        let mut observed = Observed::begin(self.api.metrics.begin_at(path), call);
        observed.trace(path, &self.around.headers);
        let opened = observed.polled(|| self.events_of(id, watch).map_err(status::of));
        match opened.flatten() {
            Ok(events) => self.watches.add(id, events, observed),
            Err(status) => {
                observed.ended(Some(&status)).succeeded();
                self.events.push(result(id, Err(status)));
            }
        }
    }

    fn events_of(&self, id: u64, watch: Watch) -> Result<BoxStream<'static, Result<Event, Status>>, Error> {
        if self.watches.len() >= WATCHES {
            let what = format!("{WATCHES} watches of this session are open");
            return Err(Error::Overloaded { what });
        }
        let permit = self.api.permits.admit(Kind::of(watch.path()), Some(&self.caller))?;
        let (api, caller) = (Arc::clone(&self.api), Caller::clone(&self.caller));
        let events = match watch {
            Watch::Lock(message) => {
                let messages = api.watch_lock(request(message, caller))?.into_inner();
                let watched = move |message| {
                    let message = Some(message);
                    Event::Watched(WatchedLock { id, message })
                };
                messages.map_ok(watched).boxed()
            }
            Watch::Election(Observe { namespace, election }) => {
                let message = ObserveRequest { namespace, election };
                let messages = api.observe(request(message, caller))?.into_inner();
                let observed = move |message: proto::ObserveResponse| {
                    let leader = message.leader.map(leader);
                    Event::Observed(ObservedLeader { id, leader })
                };
                messages.map_ok(observed).boxed()
            }
        };
        // The permit is kept as long as the stream.
        Ok(events.inspect(move |_| _ = &permit).boxed())
    }

    /// Tells what a watch tells.
    pub(super) fn watched(&mut self, watched: Watched) {
        match watched {
            Watched::Event(watched) => {
                self.large_bytes += watched.encoded_len();
                self.events.push(event(watched).into());
            }
            Watched::Ended(id, status) => {
                if let Some((_, observed)) = self.watches.open.remove(&id) {
                    observed.ended(Some(&status)).succeeded();
                    self.events.push(result(id, Err(status)));
                }
            }
        }
    }

    /// Ends all watches, because the server does.
    pub(super) fn drain_watches(&mut self) {
        self.watches.cancel_all();
        for (id, (_, observed)) in self.watches.open.drain() {
            observed.ended(Some(&status::of(Error::Draining))).succeeded();
            self.events.push(failed(id, Error::Draining));
        }
    }
}

fn request<M>(message: M, caller: Caller) -> Request<M> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(caller);
    request
}

fn leader(leader: proto::Leader) -> Leader {
    Leader {
        candidate: leader.candidate,
        fencing_token: leader.fencing_token,
        value: leader.value,
        remaining_ttl: leader.remaining_ttl,
        since: leader.since,
        identity: leader.identity,
    }
}
