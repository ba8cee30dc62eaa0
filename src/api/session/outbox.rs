//! The events of a session on their way to its client.
//!
//! The session's task adds events, and the body of the answer takes them when the transport has a window for them. All
//! that wait leave in one message.
//!
//! The transport polls the body of an answer only when the client has opened a window. Commands would stop while the
//! client does not read, and a lock that is granted to one of them would be held by nobody. So the session is a task
//! of its own, and its events wait here. They count as unsent bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use prost::Message;
use prost::encoding::{encoded_len_varint, key_len};
use tokio::sync::Notify;
use tonic::Status;

use crate::api::capacity::{ByteCounters, QueuedBytes};
use crate::api::grant_delivery::Deliver;
use crate::api::proto::SessionEvent;
use crate::api::status;
use crate::error::Error;

/// The number of the field of a message with its events.
const EVENTS_TAG: u32 = 1;
/// The size of a message in bytes up to which events are added to it.
const MESSAGE_BYTES: usize = 64 << 10;

/// An event, and the grant that its sending delivers.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub event: SessionEvent,
    pub granted: Option<Box<dyn Deliver>>,
}

/// Events that leave in one message, and the grants that its sending delivers.
#[derive(Debug, Default)]
pub(super) struct OutgoingMessage {
    pub events: Vec<SessionEvent>,
    /// In their order, each with the number of bytes before its event.
    pub granted: Vec<(usize, Box<dyn Deliver>)>,
    /// The length in bytes.
    pub length: usize,
}

impl OutgoingMessage {
    fn add(&mut self, Outgoing { event, granted }: Outgoing, bytes: usize) {
        self.granted.extend(granted.map(|granted| (self.length, granted)));
        self.length += bytes;
        self.events.push(event);
    }
}

/// The bytes that an event adds to its message.
fn bytes_in_message(event: &SessionEvent) -> usize {
    let bytes = event.encoded_len();
    key_len(EVENTS_TAG) + encoded_len_varint(bytes as u64) + bytes
}

impl From<SessionEvent> for Outgoing {
    fn from(event: SessionEvent) -> Self {
        Self { event, granted: None }
    }
}

/// Why a session's task ended without a status.
#[derive(Debug, thiserror::Error)]
#[error("a session ended by itself")]
struct EndedByItself;

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when events were taken.
    taken: Notify,
}

#[derive(Debug)]
struct Queue {
    /// Each with its bytes in a message.
    events: VecDeque<(Outgoing, usize)>,
    bytes: QueuedBytes,
    end: Option<Result<(), Status>>,
    /// Wakes the body of the answer.
    reader: Option<Waker>,
}

/// The side of the session's task.
#[derive(Debug)]
pub(super) struct Outbox(Arc<Shared>);

/// The side of the answer's body.
#[derive(Debug)]
pub(super) struct OutboxReader(Arc<Shared>);

/// Both sides, for a stream that has something to charge for its unsent bytes.
pub(super) fn outbox(byte_counters: Option<ByteCounters>) -> (Outbox, OutboxReader) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue {
            events: VecDeque::new(),
            bytes: QueuedBytes::new(byte_counters),
            end: None,
            reader: None,
        }),
        taken: Notify::new(),
    });
    (Outbox(Arc::clone(&shared)), OutboxReader(shared))
}

impl Outbox {
    /// Adds events, which leave together.
    ///
    /// # Errors
    /// OVERLOADED if a limit of unsent bytes of the server was reached. The events are dropped then, which undoes their
    /// grants.
    pub(super) fn send(&self, events: Vec<Outgoing>) -> Result<(), Error> {
        let sized: Vec<_> = events
            .into_iter()
            .map(|outgoing| {
                let bytes = bytes_in_message(&outgoing.event);
                (outgoing, bytes)
            })
            .collect();
        let bytes: usize = sized.iter().map(|(_, bytes)| bytes).sum();
        let mut queue = self.0.queue.lock();
        queue.bytes.add(bytes)?;
        queue.events.extend(sized);
        wake(&mut queue);
        Ok(())
    }

    /// The most bytes of events that may wait: `most`, or less if the connection may have little.
    pub(super) fn limit(&self, most: usize) -> usize {
        self.0.queue.lock().bytes.limit(most)
    }

    /// How many bytes of events the transport has not taken yet.
    pub(super) fn unread(&self) -> usize {
        self.0.queue.lock().bytes.bytes()
    }

    /// Ready when events were taken.
    pub(super) async fn taken(&self) {
        self.0.taken.notified().await;
    }

    /// Ends the session for its client, after the events.
    pub(super) fn end(self, end: Result<(), Status>) {
        let mut queue = self.0.queue.lock();
        queue.end = Some(end);
        wake(&mut queue);
    }
}

/// A task that panicked ends its session.
impl Drop for Outbox {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        if queue.end.is_none() {
            queue.end = Some(Err(status::internal(EndedByItself)));
            wake(&mut queue);
        }
    }
}

fn wake(queue: &mut Queue) {
    if let Some(reader) = queue.reader.take() {
        reader.wake();
    }
}

impl OutboxReader {
    /// The events that wait, as many as fit into a message; after the last ones the end, and then nothing.
    pub(super) fn poll_events(&self, cx: &mut Context<'_>) -> Poll<Option<Result<OutgoingMessage, Status>>> {
        let mut queue = self.0.queue.lock();
        if queue.events.is_empty() {
            return match &mut queue.end {
                Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
                None => {
                    queue.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
        }
        let mut message = OutgoingMessage::default();
        while let Some((_, bytes)) = queue.events.front()
            && (message.events.is_empty() || message.length + bytes <= MESSAGE_BYTES)
            && let Some((outgoing, bytes)) = queue.events.pop_front()
        {
            message.add(outgoing, bytes);
        }
        queue.bytes.subtract(message.length);
        drop(queue);
        self.0.taken.notify_one();
        Poll::Ready(Some(Ok(message)))
    }
}

#[cfg(test)]
mod tests;
