//! What this replica's waiting claims are told: messages published by the scripts, to this replica
//! alone.

use std::sync::{Arc, Weak};

use super::Core;
use super::waiting::disown_unknown;
use crate::backend::Notification;
use crate::backend::redis_server::subscriptions::SubscriptionEvent;
use crate::name::{ClaimId, LockName};

/// Hears this replica's channel until the namespace is closed.
pub async fn hear(core: Weak<Core>) {
    let Some((hub, channel)) = core.upgrade().map(|core| (core.shared.hub.clone(), core.space.notifications())) else {
        return;
    };
    let Ok(mut heard) = hub.listen(channel).await else {
        return;
    };
    while let Some(heard) = heard.recv().await {
        let Some(core) = core.upgrade() else {
            return;
        };
        match heard {
            // Nobody who waits, nobody who missed anything.
            SubscriptionEvent::Gap if core.waiting.is_empty() => {}
            SubscriptionEvent::Gap => core.notifications.send(Notification::Gap),
            SubscriptionEvent::Message(message) => {
                if let Some(wake) = read(&message) {
                    hand_on(&core, wake);
                }
            }
        }
    }
}

/// Tells the waiter; one that no call waits for any more is taken out, for others wait behind it.
fn hand_on(core: &Arc<Core>, wake: Notification) {
    if let Notification::Next(lock, id) = &wake
        && !core.waiting.knows(lock, id)
    {
        let (core, lock, id) = (Arc::clone(core), lock.clone(), *id);
        tokio::spawn(async move {
            if let Err(error) = disown_unknown(&core, &lock, &id).await {
                tracing::debug!(%lock, %error, "a waiter whose call has ended was not taken out");
            }
        });
    }
    if let Notification::Gone(lock, id) = &wake {
        core.waiting.gone(lock, id);
    }
    core.notifications.send(wake);
}

/// A message: `n` or `g`, the claim's 16 bytes, the lock's name.
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
