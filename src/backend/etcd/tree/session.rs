//! The session of a server, its connections one after another, and the watches of each.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event as EtcdEvent, EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::plan::behind;
use super::slots::Node;
use super::{Connection, Inner, WatchRequest};
use crate::backend::etcd::cluster::client::ANSWER_BYTES;
use crate::backend::etcd::cluster::{self, failure};
use crate::backend::tree::store::{Connected, ConnectionState, Event, EventKind};

/// The pause before a connection is made again.
const AGAIN: Duration = Duration::from_millis(50);

/// A session's lease, and when etcd last said that it lives.
struct Lease {
    id: i64,
    heard: Instant,
}

/// The watches of a connection.
#[derive(Default)]
struct Watches {
    /// Those that etcd has not confirmed yet, in their order.
    opening: VecDeque<(String, oneshot::Sender<()>)>,
    open: HashMap<String, i64>,
}

impl Inner {
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

    /// Keeps a session, over one connection after another, until the tree is closed.
    pub async fn run(self: Arc<Self>, ttl: Duration) {
        let closed = self.closed.clone();
        let work = async {
            let (mut generation, mut lease) = (0, None);
            loop {
                generation += 1;
                let why = match self.serve(generation, &mut lease, ttl).await {
                    Ok(()) => "the connection was lost".to_owned(),
                    Err(failure) => failure.to_string(),
                };
                let connection = self.connection.lock().clone();
                match connection {
                    Some(connection) => self.lose(&connection, &why),
                    None => drop(self.state.send_replace(ConnectionState::Disconnected(why))),
                }
                self.opening.lock().clear();
                sleep(AGAIN).await;
            }
        };
        closed.run_until_cancelled(work).await;
    }

    async fn serve(&self, generation: u64, lease: &mut Option<Lease>, ttl: Duration) -> Result<(), cluster::Failure> {
        // What was restored meanwhile is found by the engine, which reads its numbers anew over each connection.
        self.link.forget();
        let mut changes = self.link.connections();
        let broken = self.link.broken_connections();
        let kept = lease.take().filter(|lease| lease.heard.elapsed() < ttl);
        let now = match kept {
            Some(lease) => lease,
            None => {
                let heard = Instant::now();
                let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
                let granted = self
                    .link
                    .call(|mut client| async move { client.lease_grant(seconds, None).await });
                let id = granted.await?.id();
                Lease { id, heard }
            }
        };
        let id = now.id;
        let member = self.link.for_sessions().await?;
        let opened = tokio::time::timeout(self.link.request_timeout(), member.lease_client().keep_alive(id)).await;
        let opened = opened.map_err(|_| cluster::Failure::Unavailable("etcd: a keep-alive was not answered".into()));
        let (mut keeper, mut answers) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                self.link.sessions_turn_away();
                return Err(failure(&error));
            }
            Err(failure) => {
                self.link.sessions_turn_away();
                *lease = Some(now);
                return Err(failure);
            }
        };
        let session = lease.insert(now);
        session.heard = Instant::now();
        // A stream of watches begins with one: of nothing that changes.
        let mut events = self.open_watches().await?;
        let (watches, mut requests) = mpsc::unbounded_channel();
        let lost = CancellationToken::new();
        self.slots.lock().begin(id, generation);
        self.names.lock().clear();
        self.opening.lock().clear();
        *self.connection.lock() = Some(Connection {
            generation,
            session: id,
            lost: lost.clone(),
            watches,
        });
        self.state.send_replace(ConnectionState::Connected(Connected {
            generation,
            session: id,
            server: "etcd".into(),
        }));
        let mut open = Watches::default();
        let mut ticks = interval(ttl / 3);
        loop {
            tokio::select! {
                () = lost.cancelled() => return Ok(()),
                message = events.message() => {
                    let message = message.map_err(|error| failure(&error))?;
                    let Some(message) = message else { return Ok(()) };
                    if !self.apply(&mut open, &message) {
                        return Ok(());
                    }
                }
                request = requests.recv() => match request {
                    Some(WatchRequest::Watch(path, opened)) => {
                        let first = format!("{path}/");
                        let options = WatchOptions::new().with_range(behind(&first));
                        self.names.lock().watch(first.clone());
                        open.opening.push_back((path, opened));
                        events.watch(first, Some(options)).await.map_err(|error| failure(&error))?;
                    }
                    Some(WatchRequest::Unwatch(path)) => if let Some(id) = open.open.remove(&path) {
                        self.names.lock().unwatch(&format!("{path}/"));
                        events.cancel(id).await.map_err(|error| failure(&error))?;
                    },
                    None => return Ok(()),
                },
                _ = ticks.tick() => keeper.keep_alive().await.map_err(|error| failure(&error))?,
                answer = answers.message() => match answer.map_err(|error| failure(&error))? {
                    Some(answer) if answer.ttl() > 0 => session.heard = Instant::now(),
                    _ => {
                        *lease = None;
                        return Err(cluster::Failure::LeaseGone);
                    }
                },
                () = sleep_until(session.heard + ttl) => {
                    self.link.sessions_turn_away();
                    return Ok(());
                }
                // It is unknown whether the store is still the same.
                () = async { drop(changes.wait_for(|now| now.broken != broken).await) } => return Ok(()),
            }
        }
    }

    async fn open_watches(&self) -> Result<WatchStream, cluster::Failure> {
        let first = format!("{}/watches", self.root);
        let opened = self.link.call(|client| async move {
            let mut watch = client.watch_client().max_decoding_message_size(ANSWER_BYTES);
            let mut stream = watch.watch(first, None).await?;
            let created = stream.message().await?;
            Ok((stream, created))
        });
        match opened.await? {
            (stream, Some(created)) if created.created() && !created.canceled() => Ok(stream),
            _ => Err(cluster::Failure::Unavailable("etcd: a watch was refused".into())),
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
