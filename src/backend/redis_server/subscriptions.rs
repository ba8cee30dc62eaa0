//! Published messages: one dedicated connection that receives them for the whole store.
//!
//! Messages are lost while the connection is down, so every subscriber receives a gap when it is
//! restored. A subscriber that is too slow also receives a gap.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Msg, PushInfo, RedisError, RedisResult};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{interval, sleep, timeout};

use super::connection::{Connection, connect};
use super::failure::unavailable;
use super::node::Node;
use super::settings::Settings;
use super::topology::Topology;
use crate::backend::BackendError;
use crate::backoff::{Backoff, jitter};
use crate::supervisor::supervise;

/// How many events can wait to be read before further ones count as lost.
const BUFFER: usize = 16_384;
/// How many bytes of messages can wait, at a connection and at all subscribers.
const BUFFER_BYTES: usize = 16 << 20;
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
    out: mpsc::Sender<Queued<SubscriptionEvent>>,
}

/// What waits to be read, with its part of [`BUFFER_BYTES`].
type Queued<T> = (T, Option<OwnedSemaphorePermit>);

/// The events of a subscriber.
#[derive(Debug)]
pub struct Events(mpsc::Receiver<Queued<SubscriptionEvent>>);

impl Events {
    /// The next event; `None` once the store is closed.
    ///
    /// # Cancellation safety
    /// No event is lost.
    pub async fn recv(&mut self) -> Option<SubscriptionEvent> {
        self.0.recv().await.map(|(event, _)| event)
    }
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
            bytes: Arc::new(Semaphore::new(BUFFER_BYTES)),
            was_useful: false,
        };
        supervise("redis: messages", reader, |reader| reader.run().boxed());
        Self { subscribers }
    }

    /// Subscribes to a channel for as long as the receiver lives.
    ///
    /// # Errors
    /// Unavailable when the store is closed.
    pub async fn listen(&self, channel: String) -> Result<Events, BackendError> {
        let (out, events) = mpsc::channel(BUFFER);
        let subscriber = Subscriber { channel, out };
        self.subscribers
            .send(subscriber)
            .await
            .map_err(|_| unavailable("closed"))?;
        Ok(Events(events))
    }
}

struct Reader {
    settings: Arc<Settings>,
    topology: Weak<Topology>,
    incoming: mpsc::Receiver<Subscriber>,
    channels: HashMap<String, Vec<EventSender>>,
    /// How many more bytes may wait at the subscribers.
    bytes: Arc<Semaphore>,
    /// Whether the current connection has answered a PING.
    was_useful: bool,
}

struct EventSender {
    to: mpsc::Sender<Queued<SubscriptionEvent>>,
    lost: bool,
}

impl EventSender {
    fn gap(&mut self) {
        self.lost = self.to.try_send((SubscriptionEvent::Gap, None)).is_err();
    }

    fn message(&mut self, message: &[u8], bytes: &Arc<Semaphore>) {
        if self.lost {
            self.gap();
        }
        if self.lost {
            return;
        }
        let place = reserve(bytes, message.len());
        let sent = place.map(|place| {
            self.to
                .try_send((SubscriptionEvent::Message(message.to_vec()), Some(place)))
        });
        self.lost = !matches!(sent, Some(Ok(())));
    }
}

/// A part of what may wait.
fn reserve(bytes: &Arc<Semaphore>, length: usize) -> Option<OwnedSemaphorePermit> {
    let length = u32::try_from(length).ok()?;
    Arc::clone(bytes).try_acquire_many_owned(length).ok()
}

/// Keeps a push until it is read. Whether there is room for it.
fn keep(push: PushInfo, pushes: &mpsc::Sender<Queued<PushInfo>>, bytes: &Arc<Semaphore>) -> bool {
    let place = reserve(bytes, size(&push));
    place.is_some_and(|place| pushes.try_send((push, Some(place))).is_ok())
}

/// What a push takes, about.
fn size(push: &PushInfo) -> usize {
    let texts = push.data.iter().map(|value| match value {
        redis::Value::BulkString(text) => text.len(),
        // The bound of an answer holds for others, which nobody sends.
        _ => 0,
    });
    texts.sum::<usize>() + push.data.len() * 64
}

enum End {
    Closed,
    Lost,
    /// The server refused the subscription.
    NotSubscribed(RedisError),
}

impl Reader {
    async fn run(&mut self) {
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
        let (lost, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(BUFFER_BYTES)));
        let missed = Arc::clone(&lost);
        let opened = connect(&self.settings, self.settings.credentials.at_server(info), move |push| {
            if !keep(push, &out, &bytes) {
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
        mut connection: Connection,
        mut pushes: mpsc::Receiver<Queued<PushInfo>>,
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
                    let Some((push, _place)) = push else { return End::Lost };
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
            out.gap();
        }
        Ok(())
    }

    fn deliver(&mut self, push: PushInfo) {
        let Some(message) = Msg::from_push_info(push) else {
            return;
        };
        for out in self.channels.get_mut(message.get_channel_name()).into_iter().flatten() {
            out.message(message.get_payload_bytes(), &self.bytes);
        }
    }

    fn deliver_gap(&mut self) {
        self.channels.values_mut().flatten().for_each(EventSender::gap);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_beyond_the_bytes_that_may_wait_are_lost_and_a_gap_says_so() {
        let (to, events) = mpsc::channel(BUFFER);
        let (mut sender, mut events) = (EventSender { to, lost: false }, Events(events));
        let bytes = Arc::new(Semaphore::new(10));
        for message in [&b"12345678"[..], b"123", b"12"] {
            sender.message(message, &bytes);
        }
        let mut next = async || events.recv().await.expect("it is open");
        assert!(matches!(next().await, SubscriptionEvent::Message(first) if first == b"12345678"));
        assert!(matches!(next().await, SubscriptionEvent::Gap));
        assert!(matches!(next().await, SubscriptionEvent::Message(third) if third == b"12"));
        sender.message(b"1234567890", &bytes);
        assert!(
            matches!(next().await, SubscriptionEvent::Message(_)),
            "what was read makes room"
        );
    }

    #[tokio::test]
    async fn pushes_beyond_the_bytes_that_may_wait_are_not_kept() {
        let (to, mut pushes) = mpsc::channel(BUFFER);
        let bytes = Arc::new(Semaphore::new(300));
        let push = |length| PushInfo {
            kind: redis::PushKind::Message,
            data: vec![redis::Value::BulkString(vec![0; length])],
        };
        assert!(keep(push(200), &to, &bytes));
        assert!(!keep(push(100), &to, &bytes));
        drop(pushes.recv().await);
        assert!(keep(push(100), &to, &bytes), "what was read makes room");
    }
}
