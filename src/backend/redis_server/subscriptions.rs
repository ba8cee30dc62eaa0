//! Published messages: one connection of its own that hears for the whole store.
//!
//! What is heard while the connection is away is lost, so every listener is told of the gap when it
//! is back; a listener that is too slow is told the same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Msg, PushInfo, RedisError, RedisResult};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

use super::failure::away;
use super::node::{Node, connect, jitter};
use super::settings::Settings;
use super::topology::Topology;
use crate::backend::BackendError;

/// How much may wait to be read before it counts as lost.
const UNREAD: usize = 16_384;
/// How often the connection is tried while nothing is heard.
const TRY: Duration = Duration::from_secs(1);
/// How soon the connection is made again: at first, and while that is of no use.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a listener hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionEvent {
    /// A message.
    Message(Vec<u8>),
    /// Messages may have been lost up to here; the first thing that a listener hears.
    Gap,
}

/// Where listeners come in.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    listeners: mpsc::Sender<Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    channel: String,
    out: mpsc::Sender<SubscriptionEvent>,
}

impl Subscriptions {
    /// Starts to hear; it ends with the last [`Subscriptions`] or with the topology.
    pub fn start(settings: Arc<Settings>, topology: &Arc<Topology>) -> Self {
        let (listeners, incoming) = mpsc::channel(64);
        let ear = Ear {
            settings,
            topology: Arc::downgrade(topology),
            incoming,
            channels: HashMap::new(),
            heard: false,
        };
        tokio::spawn(ear.run());
        Self { listeners }
    }

    /// Hears a channel, for as long as the receiver lives.
    ///
    /// # Errors
    /// Away when the store is closed.
    pub async fn listen(&self, channel: String) -> Result<mpsc::Receiver<SubscriptionEvent>, BackendError> {
        let (out, heard) = mpsc::channel(UNREAD);
        let listener = Subscriber { channel, out };
        self.listeners.send(listener).await.map_err(|_| away("closed"))?;
        Ok(heard)
    }
}

struct Ear {
    settings: Arc<Settings>,
    topology: Weak<Topology>,
    incoming: mpsc::Receiver<Subscriber>,
    channels: HashMap<String, Vec<Out>>,
    /// Whether the connection has been of use.
    heard: bool,
}

struct Out {
    to: mpsc::Sender<SubscriptionEvent>,
    lost: bool,
}

impl Out {
    fn send(&mut self, heard: SubscriptionEvent) {
        if self.lost && self.to.try_send(SubscriptionEvent::Gap).is_err() {
            return;
        }
        self.lost = self.to.try_send(heard).is_err();
    }
}

enum End {
    Closed,
    Lost,
    /// The server did not let us subscribe.
    Deaf(RedisError),
}

impl Ear {
    async fn run(mut self) {
        let (mut pause, mut warned) = (FIRST_PAUSE, false);
        while let Some(topology) = self.topology.upgrade() {
            let speaker = topology.speaker();
            drop(topology);
            if let Ok((info, node)) = speaker {
                let (out, pushes) = mpsc::channel(UNREAD);
                let lost = Arc::new(AtomicBool::new(false));
                let missed = Arc::clone(&lost);
                let opened = connect(&self.settings, self.settings.proof.at_server(&info), move |push| {
                    if out.try_send(push).is_err() {
                        missed.store(true, Ordering::Relaxed);
                    }
                });
                if let Ok(connection) = opened.await {
                    let end = tokio::select! {
                        end = self.hear(connection, pushes, &lost, &info) => end,
                        () = moved(&node, &info) => End::Lost,
                    };
                    if std::mem::take(&mut self.heard) {
                        (pause, warned) = (FIRST_PAUSE, false);
                    }
                    match end {
                        End::Closed => return,
                        End::Lost => {}
                        // Once, for this goes on until somebody changes the user's rights.
                        End::Deaf(error) if !warned => {
                            warned = true;
                            tracing::warn!(%error, "published messages cannot be heard");
                        }
                        End::Deaf(_) => {}
                    }
                }
            }
            sleep(jitter(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn hear(
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
            return End::Deaf(error);
        }
        self.tell_gap();
        let mut tries = interval(TRY);
        loop {
            tokio::select! {
                listener = self.incoming.recv() => {
                    let Some(listener) = listener else { return End::Closed };
                    if let Err(error) = self.add(&mut connection, listener).await { return End::Deaf(error) }
                }
                push = pushes.recv() => {
                    let Some(push) = push else { return End::Lost };
                    if push.kind == redis::PushKind::Disconnection { return End::Lost }
                    self.tell(push);
                }
                _ = tries.tick() => {
                    let speaks = self.topology.upgrade().is_some_and(|topology| topology.speaks(info));
                    if !speaks || !answers(&mut connection).await { return End::Lost }
                    self.heard = true;
                    if self.drop_deaf(&mut connection).await.is_err() { return End::Lost }
                }
            }
            if lost.swap(false, Ordering::Relaxed) {
                self.tell_gap();
            }
        }
    }

    async fn add(&mut self, connection: &mut MultiplexedConnection, listener: Subscriber) -> RedisResult<()> {
        let outs = self.channels.entry(listener.channel.clone()).or_default();
        outs.push(Out {
            to: listener.out,
            lost: true,
        });
        let at = outs.len() - 1;
        if at == 0 {
            connection.subscribe(&listener.channel).await?;
        }
        if let Some(out) = self
            .channels
            .get_mut(&listener.channel)
            .and_then(|outs| outs.get_mut(at))
        {
            out.lost = false;
            out.send(SubscriptionEvent::Gap);
        }
        Ok(())
    }

    fn tell(&mut self, push: PushInfo) {
        let Some(message) = Msg::from_push_info(push) else {
            return;
        };
        for out in self.channels.get_mut(message.get_channel_name()).into_iter().flatten() {
            out.send(SubscriptionEvent::Message(message.get_payload_bytes().to_vec()));
        }
    }

    fn tell_gap(&mut self) {
        for out in self.channels.values_mut().flatten() {
            out.send(SubscriptionEvent::Gap);
        }
    }

    async fn drop_deaf(&mut self, connection: &mut MultiplexedConnection) -> Result<(), ()> {
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
    matches!(timeout(TRY, connection.send_packed_command(&ping)).await, Ok(Ok(_)))
}

/// Waits until the node's server is another one than `info`, or away.
async fn moved(node: &Node, info: &ConnectionInfo) {
    node.until(|live| !live.is_some_and(|live| live.info.addr() == info.addr()))
        .await;
}
