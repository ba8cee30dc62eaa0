//! Notifications of this replica's waiting claims: the scripts publish them on the replica's own
//! channel.

use std::sync::{Arc, Weak};

use super::Core;
use super::waiting::disown_unknown;
use crate::backend::Notification;
use crate::backend::redis_server::subscriptions::SubscriptionEvent;
use crate::name::{ClaimId, LockName};

/// Forwards the messages of this replica's channel to the waiters until the namespace is closed.
pub async fn forward(core: Weak<Core>) {
    let Some((subscriptions, channel)) = core
        .upgrade()
        .map(|core| (core.shared.subscriptions.clone(), core.space.notifications()))
    else {
        return;
    };
    let Ok(mut events) = subscriptions.listen(channel).await else {
        return;
    };
    while let Some(event) = events.recv().await {
        let Some(core) = core.upgrade() else {
            return;
        };
        match event {
            // Without waiters, no lost message matters.
            SubscriptionEvent::Gap if core.waiting.is_empty() => {}
            SubscriptionEvent::Gap => core.notifications.send(Notification::Gap),
            SubscriptionEvent::Message(message) => {
                if let Some(notification) = read(&message) {
                    deliver(&core, notification);
                }
            }
        }
    }
}

/// Notifies the waiter. A waiter without a call is removed from the queue, because it would block the
/// waiters behind it.
fn deliver(core: &Arc<Core>, notification: Notification) {
    if let Notification::Next(lock, id) = &notification
        && !core.waiting.knows(lock, id)
    {
        let (core, lock, id) = (Arc::clone(core), lock.clone(), *id);
        tokio::spawn(async move {
            if let Err(error) = disown_unknown(&core, &lock, &id).await {
                tracing::debug!(%lock, %error, "a waiter whose call has ended was not removed");
            }
        });
    }
    if let Notification::Gone(lock, id) = &notification {
        core.waiting.gone(lock, id);
    }
    core.notifications.send(notification);
}

/// Parses a message: `n` (next) or `g` (gone), the 16 bytes of the claim's id, the lock's name.
fn read(message: &[u8]) -> Option<Notification> {
    let (kind, rest) = message.split_first()?;
    let (id, name) = rest.split_first_chunk::<16>()?;
    let lock = LockName::new(std::str::from_utf8(name).ok()?).ok()?;
    let claim = ClaimId::from_bytes(*id);
    match kind {
        b'n' => Some(Notification::Next(lock, claim)),
        b'g' => Some(Notification::Gone(lock, claim)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_claim_and_lock() {
        let (lock, claim) = (LockName::new("ä:b").unwrap(), ClaimId::from_bytes([9; 16]));
        let message = [b"n".as_slice(), claim.as_bytes(), lock.as_str().as_bytes()].concat();
        assert_eq!(read(&message), Some(Notification::Next(lock, claim)));
        assert_eq!(read(&message[..17]), None);
    }
}
