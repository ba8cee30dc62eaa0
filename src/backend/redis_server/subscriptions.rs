//! Published messages: one dedicated connection that receives them for the whole store.
//!
//! Messages are lost while the connection is down, so every subscriber receives a gap when it is
//! restored. A subscriber that is too slow also receives a gap.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Msg, PushInfo, RedisError, RedisResult};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

use super::connection::connect;
use super::failure::unavailable;
use super::node::Node;
use super::settings::Settings;
use super::topology::Topology;
use crate::backend::BackendError;
use crate::backoff::{Backoff, jitter};

/// How many events can wait to be read before further ones count as lost.
const BUFFER: usize = 16_384;
/// How often the connection is checked with a PING.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a reconnection: the first, and the longest while reconnections fail.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// An event for a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionEvent {
    /// A message.
    Message(Vec<u8>),
    /// Messages before this event may have been lost; also the first event of a subscriber.
    Gap,
}

/// Adds subscribers.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    subscribers: mpsc::Sender<Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    channel: String,
    out: mpsc::Sender<SubscriptionEvent>,
}

impl Subscriptions {
    /// Starts the connection. It ends with the last [`Subscriptions`] or with the topology.
    pub fn start(settings: Arc<Settings>, topology: &Arc<Topology>) -> Self {
        let (subscribers, incoming) = mpsc::channel(64);
        let reader = Reader {
            settings,
            topology: Arc::downgrade(topology),
            incoming,
            channels: HashMap::new(),
            was_useful: false,
        };
        tokio::spawn(reader.run());
        Self { subscribers }
    }

    /// Subscribes to a channel for as long as the receiver lives.
    ///
    /// # Errors
    /// Unavailable when the store is closed.
    pub async fn listen(&self, channel: String) -> Result<mpsc::Receiver<SubscriptionEvent>, BackendError> {
        let (out, events) = mpsc::channel(BUFFER);
        let subscriber = Subscriber { channel, out };
        self.subscribers
            .send(subscriber)
            .await
            .map_err(|_| unavailable("closed"))?;
        Ok(events)
    }
}

struct Reader {
    settings: Arc<Settings>,
    topology: Weak<Topology>,
    incoming: mpsc::Receiver<Subscriber>,
    channels: HashMap<String, Vec<EventSender>>,
    /// Whether the current connection has answered a PING.
    was_useful: bool,
}

struct EventSender {
    to: mpsc::Sender<SubscriptionEvent>,
    lost: bool,
}

impl EventSender {
    fn send(&mut self, event: SubscriptionEvent) {
        if self.lost && self.to.try_send(SubscriptionEvent::Gap).is_err() {
            return;
        }
        self.lost = self.to.try_send(event).is_err();
    }
}

enum End {
    Closed,
    Lost,
    /// The server refused the subscription.
    NotSubscribed(RedisError),
}

impl Reader {
    async fn run(mut self) {
        let (mut backoff, mut warned) = (BACKOFF, false);
        while let Some(topology) = self.topology.upgrade() {
            let source = topology.message_source();
            drop(topology);
            let end = match source {
                Ok((info, node)) => self.connect_and_read(&info, &node).await,
                Err(_) => End::Lost,
            };
            if std::mem::take(&mut self.was_useful) {
                backoff.reset();
                warned = false;
            }
            match end {
                End::Closed => return,
                End::Lost => {}
                // Logged only once, because this lasts until the user's permissions change.
                End::NotSubscribed(error) if !warned => {
                    warned = true;
                    tracing::warn!(%error, "published messages cannot be received");
                }
                End::NotSubscribed(_) => {}
            }
            sleep(jitter(backoff.pause())).await;
        }
    }

    /// Reads messages over one connection, until it ends or another server is to be used.
    async fn connect_and_read(&mut self, info: &ConnectionInfo, node: &Node) -> End {
        let (out, pushes) = mpsc::channel(BUFFER);
        let lost = Arc::new(AtomicBool::new(false));
        let missed = Arc::clone(&lost);
        let opened = connect(&self.settings, self.settings.credentials.at_server(info), move |push| {
            if out.try_send(push).is_err() {
                missed.store(true, Ordering::Relaxed);
            }
        });
        let Ok(connection) = opened.await else {
            return End::Lost;
        };
        tokio::select! {
            end = self.read(connection, pushes, &lost, info) => end,
            () = moved(node, info) => End::Lost,
        }
    }

    async fn read(
        &mut self,
        mut connection: MultiplexedConnection,
        mut pushes: mpsc::Receiver<PushInfo>,
        lost: &AtomicBool,
        info: &ConnectionInfo,
    ) -> End {
        let channels: Vec<String> = self.channels.keys().cloned().collect();
        if !channels.is_empty()
            && let Err(error) = connection.subscribe(channels).await
        {
            return End::NotSubscribed(error);
        }
        self.deliver_gap();
        let mut pings = interval(PING_INTERVAL);
        loop {
            tokio::select! {
                subscriber = self.incoming.recv() => {
                    let Some(subscriber) = subscriber else { return End::Closed };
                    if let Err(error) = self.add(&mut connection, subscriber).await { return End::NotSubscribed(error) }
                }
                push = pushes.recv() => {
                    let Some(push) = push else { return End::Lost };
                    if push.kind == redis::PushKind::Disconnection { return End::Lost }
                    self.deliver(push);
                }
                _ = pings.tick() => {
                    let is_source = self.topology.upgrade().is_some_and(|topology| topology.is_message_source(info));
                    if !is_source || !answers(&mut connection).await { return End::Lost }
                    self.was_useful = true;
                    if self.drop_closed(&mut connection).await.is_err() { return End::Lost }
                }
            }
            if lost.swap(false, Ordering::Relaxed) {
                self.deliver_gap();
            }
        }
    }

    async fn add(&mut self, connection: &mut MultiplexedConnection, subscriber: Subscriber) -> RedisResult<()> {
        let outs = self.channels.entry(subscriber.channel.clone()).or_default();
        outs.push(EventSender {
            to: subscriber.out,
            lost: true,
        });
        let at = outs.len() - 1;
        if at == 0 {
            connection.subscribe(&subscriber.channel).await?;
        }
        if let Some(out) = self
            .channels
            .get_mut(&subscriber.channel)
            .and_then(|outs| outs.get_mut(at))
        {
            out.lost = false;
            out.send(SubscriptionEvent::Gap);
        }
        Ok(())
    }

    fn deliver(&mut self, push: PushInfo) {
        let Some(message) = Msg::from_push_info(push) else {
            return;
        };
        for out in self.channels.get_mut(message.get_channel_name()).into_iter().flatten() {
            out.send(SubscriptionEvent::Message(message.get_payload_bytes().to_vec()));
        }
    }

    fn deliver_gap(&mut self) {
        for out in self.channels.values_mut().flatten() {
            out.send(SubscriptionEvent::Gap);
        }
    }

    async fn drop_closed(&mut self, connection: &mut MultiplexedConnection) -> Result<(), ()> {
        let mut empty = Vec::new();
        self.channels.retain(|channel, outs| {
            outs.retain(|out| !out.to.is_closed());
            if outs.is_empty() {
                empty.push(channel.clone());
            }
            !outs.is_empty()
        });
        if empty.is_empty() {
            return Ok(());
        }
        connection.unsubscribe(empty).await.map_err(|_| ())
    }
}

async fn answers(connection: &mut MultiplexedConnection) -> bool {
    let ping = redis::cmd("PING");
    matches!(
        timeout(PING_INTERVAL, connection.send_packed_command(&ping)).await,
        Ok(Ok(_))
    )
}

/// Waits until the node's server is unavailable or another one than `info`.
async fn moved(node: &Node, info: &ConnectionInfo) {
    node.until(|live| !live.is_some_and(|live| live.info.addr() == info.addr()))
        .await;
}
