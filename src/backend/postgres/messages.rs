//! Messages from server to server: NOTIFY after the commit, on a connection whose commits wait for no disk, because NOTIFY
//! in the transaction of a commit would make all commits wait for each other.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::notifications::NotificationSender;
use crate::backend::record::store::{Heard, LockTime, Message, ServerId, Stamp, StoreTime};
use crate::name::LockName;

/// PostgreSQL refuses a payload of 8,000 bytes.
const MAX_PAYLOAD: usize = 7_999;
/// What the name of each channel begins with.
const CHANNEL: &str = "fencepost_";

/// The streams of messages of this process, by the server that they are for.
#[derive(Debug, Default)]
pub struct Inboxes {
    inboxes: Mutex<HashMap<String, Inbox>>,
    /// Tells that a channel was added.
    pub added: Notify,
}

#[derive(Debug)]
struct Inbox {
    sender: Arc<NotificationSender<Heard>>,
    /// Whether its channel was listened to.
    was_heard: bool,
}

impl Inboxes {
    /// Adds the stream of a server.
    pub fn add(&self, server: ServerId) -> Arc<NotificationSender<Heard>> {
        let sender = Arc::new(NotificationSender::new(Heard::Gap));
        let inbox = Inbox {
            sender: Arc::clone(&sender),
            was_heard: false,
        };
        self.inboxes.lock().insert(channel(server), inbox);
        self.added.notify_one();
        sender
    }

    /// Ends the stream of a server.
    pub fn remove(&self, server: ServerId) {
        if let Some(inbox) = self.inboxes.lock().remove(&channel(server)) {
            inbox.sender.close();
        }
    }

    /// The statements that listen to all channels.
    pub fn listen(&self) -> String {
        self.inboxes.lock().keys().fold(String::new(), |mut text, channel| {
            let _ = write!(text, "LISTEN {channel};");
            text
        })
    }

    /// All channels are listened to. Over a new connection, those that were heard over another one have a gap.
    pub fn listened(&self, is_new_connection: bool) {
        for inbox in self.inboxes.lock().values_mut() {
            if is_new_connection && inbox.was_heard {
                inbox.sender.send(Heard::Gap);
            }
            inbox.was_heard = true;
        }
    }

    /// Delivers a notification.
    pub fn deliver(&self, channel: &str, payload: &str) {
        if let Some(inbox) = self.inboxes.lock().get(channel) {
            inbox.sender.send(decode(payload).unwrap_or(Heard::Gap));
        }
    }
}

/// The channel of a server.
pub fn channel(server: ServerId) -> String {
    format!("{CHANNEL}{:016x}", server.0)
}

/// The payload of a message about a lock: the stamp, the length of the name, the name and the body, in base64. A body that
/// does not fit is left out.
pub fn encode(lock: &LockName, stamp: Stamp, message: &Message) -> String {
    let name = lock.as_str().as_bytes();
    let mut bytes = Vec::with_capacity(18 + name.len() + message.body.len());
    bytes.extend(stamp.clock.0.to_be_bytes());
    bytes.extend(stamp.time.0.to_be_bytes());
    bytes.extend((name.len() as u16).to_be_bytes());
    bytes.extend(name);
    if base64::encoded_len(bytes.len() + message.body.len(), false).is_some_and(|length| length <= MAX_PAYLOAD) {
        bytes.extend(&message.body);
    }
    STANDARD_NO_PAD.encode(bytes)
}

fn decode(payload: &str) -> Option<Heard> {
    let bytes = STANDARD_NO_PAD.decode(payload).ok()?;
    let (clock, rest) = bytes.split_first_chunk()?;
    let (time, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (name, body) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    let name = LockName::new(std::str::from_utf8(name).ok()?).ok()?;
    let stamp = Stamp {
        clock: LockTime(u64::from_be_bytes(*clock)),
        time: StoreTime(u64::from_be_bytes(*time)),
    };
    Some(Heard::Message(name, stamp, body.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_body_that_does_not_fit_is_left_out() {
        let lock = LockName::new(&"n".repeat(512)).unwrap();
        let stamp = Stamp {
            clock: LockTime(2),
            time: StoreTime(1),
        };
        for (sent, heard) in [(0, 0), (5_469, 5_469), (5_470, 0), (100_000, 0)] {
            let message = Message {
                to: ServerId(NonZeroU64::MIN),
                body: vec![7; sent],
            };
            let payload = encode(&lock, stamp, &message);
            assert!(payload.len() <= MAX_PAYLOAD, "{}", payload.len());
            assert_eq!(
                decode(&payload),
                Some(Heard::Message(lock.clone(), stamp, vec![7; heard])),
                "{sent}"
            );
        }
        assert_eq!(decode("AAAA"), None);
    }
}
