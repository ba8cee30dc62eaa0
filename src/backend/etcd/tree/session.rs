//! The session of a server, its connections one after another, and the watches of each.
//!
//! **An old copy of the store** may be put back while all members are down. That breaks every connection, and with it the
//! stream of watches, which shares the client of the commits; so a new connection begins, over which the engine raises
//! its fence and reads its numbers anew. What was sent before is not under way any more, because it went to members that
//! are gone. Answers that come over another connection than the one that was opened ([`Route`]) do not count. Numbers that
//! were given out before the copy was put back may be given again:
//!
//! - A path names the connection that has made it beside its revision, so no path of a later connection is the same.
//! - A version that a server knows may be another one's by now: the engine reads again what it knows, over each connection.
//! - A revision that falls is told to all namespaces of the store, each of which connects anew ([`ClusterClient::catch_up`]).
//!
//! [`Route`]: crate::backend::etcd::cluster::client::Route
//! [`ClusterClient::catch_up`]: crate::backend::etcd::cluster::client::ClusterClient::catch_up

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error, Event as EtcdEvent, EventType, LeaseKeepAliveStream, LeaseKeeper, WatchOptions, WatchResponse, WatchStream,
};
use tokio::pin;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::plan::behind;
use super::slots::Node;
use super::{Connection, Inner, WatchRequest};
use crate::backend::etcd::cluster::checks::Condition;
use crate::backend::etcd::cluster::client::{ANSWER_BYTES, MemberClient};
use crate::backend::etcd::cluster::{self, failure};
use crate::backend::tree::store::{Connected, ConnectionState, Event, EventKind};
use crate::backoff::Backoff;

/// The pauses before a connection is made again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// How often the cluster's status is read.
const CHECK_EVERY: Duration = Duration::from_secs(5);

const NO_SPACE: &str = "its space is used up (NOSPACE): nothing is granted until some is freed";

/// A session's lease, and when etcd last said that it lives.
pub struct Lease {
    id: i64,
    heard: Instant,
    /// How often the store was restored when it was granted.
    restores: u64,
}

/// The streams of a connection.
struct Streams {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    events: WatchStream,
    requests: mpsc::UnboundedReceiver<WatchRequest>,
    /// Changes when an answer shows an old copy.
    restores: watch::Receiver<u64>,
    lost: CancellationToken,
}

/// The watches of a connection.
#[derive(Default)]
struct Watches {
    /// Those that etcd has not confirmed yet, in their order.
    opening: VecDeque<(String, oneshot::Sender<()>)>,
    open: HashMap<String, i64>,
}

fn ended(why: &str) -> cluster::Failure {
    cluster::Failure::Unavailable(why.into())
}

/// What ends a connection that a request has lost.
fn lost_before() -> cluster::Failure {
    ended("a request has lost it")
}

/// A session, over one connection after another.
pub struct Session {
    pub inner: Arc<Inner>,
    ttl: Duration,
    generation: u64,
    lease: Option<Lease>,
}

impl Session {
    /// One that has not begun.
    pub fn new(inner: &Arc<Inner>, ttl: Duration) -> Self {
        Self {
            inner: Arc::clone(inner),
            ttl,
            generation: 0,
            lease: None,
        }
    }

    /// Keeps it until the tree is closed.
    pub async fn run(&mut self) {
        let (inner, ttl) = (Arc::clone(&self.inner), self.ttl);
        let work = async {
            let mut backoff = BACKOFF;
            loop {
                self.generation += 1;
                let ended = match inner.open(self.generation, &mut self.lease, ttl).await {
                    Ok((streams, session)) => {
                        backoff.reset();
                        let Err(failure) = inner.follow(streams, session, ttl).await;
                        failure
                    }
                    Err(failure) => failure,
                };
                if ended == cluster::Failure::LeaseGone {
                    self.lease = None;
                }
                inner.note_end(&ended);
                sleep(backoff.pause()).await;
            }
        };
        inner.closed.run_until_cancelled(work).await;
    }
}

impl Inner {
    /// Why no key can be put over the present connection.
    pub fn refusal(&self) -> Option<String> {
        match &*self.state.borrow() {
            ConnectionState::Connected(connected) => connected.refusal.clone(),
            ConnectionState::Disconnected(_) => None,
        }
    }

    /// Notes whether the store's space is used up, and logs when that begins and ends.
    pub fn note_space(&self, is_full: bool) {
        self.state.send_if_modified(|state| {
            let ConnectionState::Connected(connected) = state else {
                return false;
            };
            let changes = connected.refusal.is_some() != is_full;
            connected.refusal = is_full.then(|| NO_SPACE.to_owned());
            match is_full {
                _ if !changes => {}
                true => tracing::error!("etcd has no space left (NOSPACE): nothing is granted"),
                false => tracing::info!("etcd has space again"),
            }
            changes
        });
    }

    /// Ends a connection.
    pub fn lose(&self, connection: &Connection, why: &str) {
        let mut current = self.connection.lock();
        if current
            .as_ref()
            .is_some_and(|current| current.generation == connection.generation)
        {
            *current = None;
            self.state.send_replace(ConnectionState::Disconnected(why.to_owned()));
        }
        connection.lost.cancel();
    }

    /// Notes that a connection ended, or was not opened. One that a request has lost has a reason already.
    pub fn note_end(&self, ended: &cluster::Failure) {
        let connection = self.connection.lock().clone();
        let why = ended.to_string();
        match connection {
            Some(connection) => self.lose(&connection, &why),
            None if *ended == lost_before() => {}
            None => drop(self.state.send_replace(ConnectionState::Disconnected(why))),
        }
        self.opening.lock().clear();
    }

    /// A key that this server may read.
    fn readable(&self) -> String {
        format!("{}/base", self.root)
    }

    /// Opens a connection, over which the session goes on if it may live.
    async fn open<'a>(
        &self,
        generation: u64,
        lease: &'a mut Option<Lease>,
        ttl: Duration,
    ) -> Result<(Streams, &'a mut Lease), cluster::Failure> {
        self.link.catch_up(&self.readable()).await?;
        // Before the route is read, so that no change of it is missed.
        let restores = self.link.restores();
        let client = self.link.member_client().await?;
        // An old copy of the store has waiters whose calls may have ended. They go with their session.
        if let Some(old) = lease.take_if(|lease| lease.restores != *restores.borrow()) {
            self.revoke(old.id).await?;
        }
        let kept = lease.take().filter(|lease| lease.heard.elapsed() < ttl);
        let session = match kept {
            Some(kept) => lease.insert(kept),
            None => lease.insert(self.new_session(ttl).await?),
        };
        let asked = Instant::now();
        let (keeper, answers) = self.keep_alive(session.id).await?;
        session.heard = asked;
        // A stream of watches begins with one: of nothing that changes.
        let events = self.open_watches(&client).await?;
        if self.link.route() != client.route {
            return Err(cluster::Failure::Unavailable("calls go over another connection".into()));
        }
        let (watches, requests) = mpsc::unbounded_channel();
        let lost = CancellationToken::new();
        self.slots.lock().begin(session.id, generation);
        self.names.lock().clear();
        self.lists.lock().begin(generation);
        self.opening.lock().clear();
        *self.connection.lock() = Some(Connection {
            generation,
            session: session.id,
            client,
            lost: lost.clone(),
            watches,
        });
        self.state.send_replace(ConnectionState::Connected(Connected {
            generation,
            session: session.id,
            server: "etcd".into(),
            refusal: None,
        }));
        let streams = Streams {
            keeper,
            answers,
            events,
            requests,
            restores,
            lost,
        };
        Ok((streams, session))
    }

    async fn new_session(&self, ttl: Duration) -> Result<Lease, cluster::Failure> {
        let condition = Condition::of(&self.link, &self.readable()).await?;
        condition.tell();
        if condition.full {
            return Err(cluster::Failure::Full(NO_SPACE.into()));
        }
        let (heard, restores) = (Instant::now(), *self.link.restores().borrow());
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let granted = self
            .link
            .call(|mut client| async move { client.lease_grant(seconds, None).await });
        let id = granted.await?.id();
        Ok(Lease { id, heard, restores })
    }

    /// Ends a session.
    pub async fn revoke(&self, session: i64) -> Result<(), cluster::Failure> {
        let revoked = self
            .link
            .call(|mut client| async move { client.lease_revoke(session).await });
        match revoked.await {
            Ok(_) | Err(cluster::Failure::LeaseGone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Opens the stream that keeps a session alive, over the connection that carries nothing else.
    async fn keep_alive(&self, session: i64) -> Result<(LeaseKeeper, LeaseKeepAliveStream), cluster::Failure> {
        let opened = timeout(self.link.request_timeout(), async {
            let mut client = self.link.for_sessions().await?;
            match client.lease_keep_alive(session).await {
                // The client reads the first answer itself, and turns a TTL of zero into this error.
                Err(Error::LeaseKeepAliveError(said)) if said.contains("lease not found") => {
                    Err(cluster::Failure::LeaseGone)
                }
                opened => opened.map_err(|error| failure(&error)),
            }
        });
        let silent = |_| Err(cluster::Failure::Unavailable("a keep-alive was not answered".into()));
        let opened = opened.await.unwrap_or_else(silent);
        if opened
            .as_ref()
            .is_err_and(|failure| *failure != cluster::Failure::LeaseGone)
        {
            self.link.sessions_turn_away();
        }
        opened
    }

    /// Follows a connection until it breaks, which is its error.
    async fn follow(
        &self,
        streams: Streams,
        session: &mut Lease,
        ttl: Duration,
    ) -> Result<Infallible, cluster::Failure> {
        let Streams {
            mut keeper,
            mut answers,
            mut events,
            mut requests,
            mut restores,
            lost,
        } = streams;
        let mut watches = Watches::default();
        let mut ticks = interval(ttl / 3);
        let space = self.watch_space();
        pin!(space);
        loop {
            tokio::select! {
                () = lost.cancelled() => return Err(lost_before()),
                message = events.message() => {
                    let message = message.map_err(|error| failure(&error))?;
                    let message = message.ok_or_else(|| ended("the stream of watches ended"))?;
                    if !self.apply(&mut watches, &message) {
                        return Err(ended("a watch was cancelled"));
                    }
                }
                request = requests.recv() => match request {
                    Some(request) => self.change_watch(&mut watches, &mut events, request).await?,
                    None => return Err(lost_before()),
                },
                _ = ticks.tick() => keeper.keep_alive().await.map_err(|error| failure(&error))?,
                answer = answers.message() => match answer.map_err(|error| failure(&error))? {
                    Some(answer) if answer.ttl() > 0 => session.heard = Instant::now(),
                    Some(_) => return Err(cluster::Failure::LeaseGone),
                    None => return Err(ended("the stream of keep-alives ended")),
                },
                () = sleep_until(session.heard + ttl) => {
                    self.link.sessions_turn_away();
                    return Err(ended("no keep-alive was answered for as long as the session lives"));
                }
                // It is unknown whether the store is still the same.
                _ = restores.changed() => return Err(ended("an answer showed an old copy of the store")),
                never = &mut space => match never {},
            }
        }
    }

    /// Reads the cluster's status from time to time.
    async fn watch_space(&self) -> Infallible {
        loop {
            sleep(CHECK_EVERY).await;
            match Condition::of(&self.link, &self.readable()).await {
                Ok(condition) => self.note_space(condition.full),
                Err(failure) => tracing::debug!(%failure, "the status of etcd cannot be read"),
            }
        }
    }

    async fn change_watch(
        &self,
        watches: &mut Watches,
        events: &mut WatchStream,
        request: WatchRequest,
    ) -> Result<(), cluster::Failure> {
        match request {
            WatchRequest::Watch(path, opened) => {
                let first = format!("{path}/");
                let options = WatchOptions::new().with_range(behind(&first));
                self.names.lock().watch(first.clone());
                watches.opening.push_back((path, opened));
                let sent = events.watch(first, Some(options)).await;
                sent.map_err(|error| failure(&error))
            }
            WatchRequest::Unwatch(path) => {
                let Some(id) = watches.open.remove(&path) else {
                    return Ok(());
                };
                self.names.lock().unwatch(&format!("{path}/"));
                events.cancel(id).await.map_err(|error| failure(&error))
            }
        }
    }

    async fn open_watches(&self, over: &MemberClient) -> Result<WatchStream, cluster::Failure> {
        let first = format!("{}/watches", self.root);
        let opened = self.link.call_over(over, |client| async move {
            let mut watch = client.watch_client().max_decoding_message_size(ANSWER_BYTES);
            let mut stream = watch.watch(first, None).await?;
            let created = stream.message().await?;
            Ok((stream, created))
        });
        match opened.await? {
            (stream, Some(created)) if created.created() && !created.canceled() => Ok(stream),
            _ => Err(cluster::Failure::Unavailable("a watch was refused".into())),
        }
    }

    /// Applies a message of the watches. Whether they go on.
    fn apply(&self, watches: &mut Watches, message: &WatchResponse) -> bool {
        if message.created() && !message.canceled() {
            if let Some((path, opened)) = watches.opening.pop_front() {
                watches.open.insert(path.clone(), message.watch_id());
                self.opening.lock().remove(&path);
                let _ = opened.send(());
            }
            return true;
        }
        if message.canceled() {
            // Otherwise it was asked for.
            return !message.created() && watches.open.values().all(|open| *open != message.watch_id());
        }
        message.events().iter().for_each(|event| self.tell(event));
        true
    }

    fn tell(&self, event: &EtcdEvent) {
        let Some(kv) = event.kv() else { return };
        let Ok(key) = kv.key_str() else { return };
        let Node::Child { lock, name: suffix } = Node::of(&self.root, key) else {
            if event.event_type() == EventType::Put {
                let (kind, path) = (EventKind::Created, key.to_owned());
                let _ = self.events.send(Event { kind, path });
            }
            return;
        };
        let (kind, name) = match event.event_type() {
            EventType::Put => {
                let is_new = kv.create_revision() == kv.mod_revision();
                let kind = if is_new { EventKind::Created } else { EventKind::Changed };
                (kind, self.names.lock().put(lock, suffix, kv))
            }
            EventType::Delete => {
                let Some((name, created)) = self.names.lock().deleted(lock, suffix, kv.mod_revision()) else {
                    return;
                };
                self.slots.lock().gone(lock, suffix, created);
                (EventKind::Deleted, name)
            }
        };
        let path = format!("{lock}{name}");
        let _ = self.events.send(Event { kind, path });
    }
}
