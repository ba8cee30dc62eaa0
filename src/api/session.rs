//! `Session`: many operations on one stream.
//!
//! A task of its own reads the commands, starts those that [`Commands`] lets start, and adds what happens to the outbox
//! ([`mod@outbox`]), from which the body of the answer takes it. The task also runs while the client does not read, and it
//! ends with the stream. A command runs in what its unary call has around it ([`command_call`]) and calls what its unary
//! call calls.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::RandomState;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::OptionFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

use self::command_call::{CallContext, CommandCall, Finished};
use self::events::{Answer, event, of_leases, result};
use self::lease_places::{LEASES, LeasePlaces};
use self::outbox::{Outbox, OutboxReader, Outgoing, outbox};
use self::start::LockCommand;
use self::watches::{Watched, Watches};
use super::access::GuardedNamespaces;
use super::authenticate::Caller;
use super::catch_panic::unreadable;
use super::concurrency_limit::byte_counters;
use super::grant_delivery::Undelivered;
use super::lease_keeper::{LeaseKeeper, StreamName};
use super::open_streams::{OpenStream, StreamState};
use super::proto::session_event::command_result::Outcome;
use super::proto::session_event::{Event, Opened};
use super::proto::{SessionKind, SessionRequest, SessionResponse};
use super::request_log::CallName;
use super::shared::{Api, Messages};
use super::status;
use crate::error::Error;
use crate::locks::{WaitControl, WaitProgress};
use crate::rpc::path;
use crate::session::{Commands, KeptLeases};

mod adding;
mod command_call;
mod ending;
mod events;
mod execute;
mod lease_places;
mod outbox;
mod start;
mod watches;

/// How many commands of a session may be in flight.
const COMMANDS: usize = 1_000;
/// The longest id of a session that can be resumed, in bytes.
const SESSION_ID_BYTES: usize = 128;
/// How many commands a message may have. Each has an answer, so this bounds what one message adds to the unread events.
const MESSAGE_COMMANDS: usize = 2_000;
/// After how many commands or turns of the loop the results leave, while others still run: the client reads them meanwhile. Each
/// message costs as much as some commands.
const READY_TOGETHER: usize = 32;
/// From how many bytes of unread events on commands are refused, unless the connection may have little unread. From twice
/// as many on no commands are read.
const UNREAD_BYTES: usize = 1 << 20;
/// The longest time between two asks while a lease is attached or an Acquire waits: proxies end streams that are idle for
/// 60 s or less.
const LONGEST_PAUSE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });

/// Opens the session of a caller that may open it.
pub(super) fn open(
    api: Arc<Api>,
    request: Request<Streaming<SessionRequest>>,
) -> Result<Response<Messages<SessionResponse>>, Error> {
    let (metadata, mut extensions, requests) = request.into_parts();
    let byte_counters = byte_counters(&extensions, extensions.get());
    let caller = Caller::of(&mut extensions);
    let open = api.guarded.to_keep(SessionKind::Session, &caller, extensions.get())?;
    let (outbox, reader) = outbox(byte_counters);
    let around = CallContext {
        session: Arc::new(extensions.remove().unwrap_or(CallName::Made { run: 0, number: 0 })),
        headers: metadata.into_headers(),
    };
    let session = Session::new(api, around, caller, requests, outbox, Arc::clone(&open.state));
    let undelivered = Undelivered::default();
    let events = SessionEvents {
        reader,
        undelivered: undelivered.clone(),
        _task: AbortOnDropHandle::new(tokio::spawn(session.run())),
        open,
    };
    let mut response = Response::new(events.boxed());
    response.extensions_mut().insert(undelivered);
    Ok(response)
}

/// The body of the answer. Its end ends the task.
struct SessionEvents {
    reader: OutboxReader,
    undelivered: Undelivered,
    _task: AbortOnDropHandle<()>,
    open: OpenStream,
}

/// Before the grants in the outbox and the commands of the task are dropped.
impl Drop for SessionEvents {
    fn drop(&mut self) {
        self.open.state.ends(None);
    }
}

impl Stream for SessionEvents {
    type Item = Result<SessionResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.reader.poll_events(cx).map_ok(|message| {
            self.undelivered.add(message.length, message.granted);
            let events = message.events;
            SessionResponse { events }
        })
    }
}

/// The phases of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The client has no more commands.
    Ended,
    /// The client closes it by this command.
    Closing {
        id: u64,
        releases: bool,
    },
    /// The leases are given back.
    Releasing {
        id: u64,
    },
    Draining,
}

/// The id of an Acquire that may wait, and its progress.
type WaitSignal = (u64, WaitProgress);

/// What happens next.
enum Next {
    Commands(SessionRequest),
    /// The client has no more commands.
    End,
    Broken(Status),
    Draining,
    Stopped(Error),
    /// An Acquire that may wait has got further.
    Progressed(u64, WaitProgress),
    Finished(Finished),
    Watched(Watched),
    /// Something about the leases, or the client has read.
    Progress,
}

/// The wait of an Acquire.
#[derive(Debug)]
struct Wait {
    /// Its call counts from when its command arrived.
    control: WaitControl,
    /// When it ends; absent for a try.
    end: Option<Instant>,
}

/// The task of a session.
struct Session {
    api: Arc<Api>,
    around: CallContext,
    /// What ListSessions shows of it.
    state: Arc<StreamState>,
    caller: Arc<Caller>,
    requests: Streaming<SessionRequest>,
    phase: Phase,
    /// Whether no command has arrived.
    is_first_command: bool,
    /// The commands that have no result yet, except those that need no call and the beats.
    commands: Commands<LockCommand>,
    running: FuturesUnordered<CommandCall>,
    /// The commands that ended when they started.
    ready: VecDeque<Finished>,
    /// How many commands and turns of the loop there were since the last pause.
    executed: usize,
    /// The Acquires that may wait.
    waits: HashMap<u64, Wait>,
    /// How many of them do.
    waiting: usize,
    watches: Watches,
    /// The ends of the waits of Acquires that other commands delayed when they arrived.
    delayed_until: BTreeSet<(Instant, u64)>,
    progress: (UnboundedSender<WaitSignal>, UnboundedReceiver<WaitSignal>),
    keeper: LeaseKeeper,
    places: LeasePlaces,
    /// The keep_alives that the beat in progress answers: all arrived before it began.
    beats: Vec<u64>,
    /// The keep_alives that arrived later.
    next_beats: Vec<u64>,
    /// When the client is asked at the latest; absent while nothing is attached and nothing waits.
    ask_by: Option<Instant>,
    outbox: Outbox,
    /// From how many bytes of unread events on commands are refused.
    unread_limit: usize,
    /// The events that leave together.
    events: Vec<Outgoing>,
    /// The size of the states of locks and the outcomes of keep_alives among them.
    large_bytes: usize,
    hasher: RandomState,
    unauthenticated: Pin<Box<dyn Future<Output = Error> + Send>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Session {
    fn new(
        api: Arc<Api>,
        around: CallContext,
        caller: Caller,
        requests: Streaming<SessionRequest>,
        outbox: Outbox,
        state: Arc<StreamState>,
    ) -> Self {
        let stream = StreamName {
            method: path::SESSION,
            id: Some((*around.session).clone()),
        };
        Self {
            unauthenticated: Box::pin(GuardedNamespaces::until_unauthenticated(caller.clone())),
            draining: Box::pin(api.permits.drain_of(Some(&caller)).clone().cancelled_owned()),
            keeper: LeaseKeeper::new(
                Arc::clone(&api),
                caller.clone(),
                stream,
                KeptLeases::attached(),
                Arc::clone(&state.leases),
            ),
            places: LeasePlaces::new(api.response_bytes),
            api,
            around,
            state,
            caller: Arc::new(caller),
            requests,
            phase: Phase::Open,
            is_first_command: true,
            ask_by: None,
            commands: Commands::default(),
            running: FuturesUnordered::new(),
            ready: VecDeque::new(),
            executed: 0,
            waits: HashMap::new(),
            waiting: 0,
            watches: Watches::default(),
            delayed_until: BTreeSet::new(),
            progress: unbounded_channel(),
            beats: Vec::new(),
            next_beats: Vec::new(),
            unread_limit: outbox.limit(UNREAD_BYTES),
            outbox,
            events: Vec::new(),
            large_bytes: 0,
            hasher: RandomState::new(),
        }
    }

    async fn run(mut self) {
        let end = self.serve().await;
        // The events before the end are told too.
        let end = self.flush().and(end);
        // The commands that run are dropped with this.
        if let Err(status) = &end {
            self.state.ends(Some(status.code()));
        }
        self.outbox.end(end);
    }

    /// Serves until the end.
    async fn serve(&mut self) -> Result<(), Status> {
        let limit = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
        self.events.push(
            event(Event::Opened(Opened {
                command_limit: limit(COMMANDS),
                lease_limit: limit(LEASES),
                unread_bytes_limit: limit(self.unread_limit),
            }))
            .into(),
        );
        loop {
            // First, for what has just ended may let a wait begin; and then what the ends of waits made ready.
            self.finish_ready();
            self.end_waits();
            self.finish_ready();
            self.take_messages();
            self.begin_beat();
            self.ask_when_idle();
            if self.executed >= READY_TOGETHER {
                self.pause().await?;
            }
            let next = match self.next().now_or_never() {
                Some(next) => next,
                None => {
                    self.flush()?;
                    if let Some(end) = self.end() {
                        return end;
                    }
                    self.next().await
                }
            };
            self.executed += 1;
            match next {
                Next::Commands(request) => self.execute_all(request).await?,
                Next::End => self.stop(Phase::Ended),
                Next::Broken(status) => {
                    return Err(unreadable(&status, self.api.request_bytes).unwrap_or(status));
                }
                Next::Draining => self.drain(),
                Next::Stopped(error) => return Err(status::of(error)),
                Next::Progressed(id, progress) => self.progressed(id, progress),
                Next::Finished(finished) => self.finished(finished),
                Next::Watched(watched) => self.watched(watched),
                Next::Progress => {}
            }
        }
    }

    async fn next(&mut self) -> Next {
        self.state
            .count(self.commands.len() + self.watches.len(), self.waits.len());
        let is_open = self.phase == Phase::Open;
        let wait_end = self.delayed_until.first().map(|(end, _)| *end);
        let ask_by = self.ask_by.filter(|_| is_open);
        let is_unread = self.is_unread();
        let may_read = is_open && self.outbox.unread() < 2 * self.unread_limit;
        tokio::select! {
            biased;
            () = &mut self.draining, if is_open => Next::Draining,
            error = &mut self.unauthenticated => Next::Stopped(error),
            Some((id, progress)) = self.progress.1.recv() => Next::Progressed(id, progress),
            Some(finished) = self.running.next() => Next::Finished(finished),
            () = self.keeper.progress() => Next::Progress,
            Some(()) = OptionFuture::from(wait_end.map(sleep_until)) => Next::Progress,
            Some(()) = OptionFuture::from(ask_by.map(sleep_until)) => Next::Progress,
            request = self.requests.message(), if may_read => match request {
                Ok(Some(request)) => Next::Commands(request),
                Ok(None) => Next::End,
                Err(status) => Next::Broken(status),
            },
            // After the commands: changes that come without a pause must not hold them up.
            Some(watched) = self.watches.next(), if !is_unread => Next::Watched(watched),
            () = self.outbox.taken(), if is_unread => Next::Progress,
        }
    }

    /// Takes all results that are ready, so that they leave together.
    fn finish_ready(&mut self) {
        loop {
            while let Ok((id, progress)) = self.progress.1.try_recv() {
                self.progressed(id, progress);
            }
            let finished = self.ready.pop_front();
            match finished.or_else(|| self.running.next().now_or_never().flatten()) {
                Some(finished) => self.finished(finished),
                None => return,
            }
        }
    }

    /// Takes what the client is told about its leases.
    fn take_messages(&mut self) {
        while let Some(message) = self.keeper.message() {
            match of_leases(message) {
                Event::Kept(kept) => self.tell_kept(kept),
                Event::Ask(ask) => {
                    self.ask_by = Some(Instant::now() + LONGEST_PAUSE);
                    self.events.push(event(Event::Ask(ask)).into());
                }
                other => self.events.push(event(other).into()),
            }
        }
    }

    /// Asks the client if that is due although no lease needs it.
    fn ask_when_idle(&mut self) {
        if self.waits.is_empty() && self.keeper.is_idle() {
            self.ask_by = None;
            return;
        }
        let now = Instant::now();
        let ask_by = *self.ask_by.get_or_insert(now + LONGEST_PAUSE);
        if ask_by <= now && self.phase == Phase::Open {
            self.keeper.ask();
            self.take_messages();
        }
    }

    /// Passes the events to the body of the answer.
    fn flush(&mut self) -> Result<(), Status> {
        if self.events.is_empty() {
            return Ok(());
        }
        self.large_bytes = 0;
        let events = std::mem::take(&mut self.events);
        self.outbox.send(events).map_err(status::of)
    }

    /// Passes the events on, and leaves other tasks their turn: a client may send without pause.
    async fn pause(&mut self) -> Result<(), Status> {
        self.executed = 0;
        self.flush()?;
        yield_now().await;
        Ok(())
    }

    /// How many keep_alives have no outcome yet.
    fn beats(&self) -> usize {
        self.beats.len() + self.next_beats.len()
    }

    fn answer(&mut self, id: u64, outcome: Outcome) {
        self.events.push(result(id, Ok(Answer::Other(outcome))));
    }
}
