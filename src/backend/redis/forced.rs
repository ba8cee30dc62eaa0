//! The claims that were forcibly released: the scripts publish them on one channel of the namespace.

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc::Receiver;

use crate::backend::Forced;
use crate::backend::redis_server::subscriptions::{SubscriptionEvent, Subscriptions};
use crate::name::{FencingToken, LockName};

/// The claims that are forcibly released while the channel is subscribed to.
pub fn forced(subscriptions: Subscriptions, channel: String) -> BoxStream<'static, Forced> {
    let subscribed = async move { subscriptions.listen(channel).await.ok() };
    let events = |mut events: Receiver<SubscriptionEvent>| async move { Some((events.recv().await?, events)) };
    stream::once(subscribed)
        .filter_map(|subscribed| async { subscribed })
        .flat_map(move |subscribed| stream::unfold(subscribed, events))
        .filter_map(|event| async {
            match event {
                SubscriptionEvent::Message(message) => read(&message),
                SubscriptionEvent::Gap => None,
            }
        })
        .boxed()
}

/// Parses a message: the token, a space, the lock's name.
fn read(message: &[u8]) -> Option<Forced> {
    let (token, lock) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some(Forced {
        lock: LockName::new(lock).ok()?,
        token: FencingToken::new(token.parse().ok()?).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_token_and_lock() {
        let (lock, token) = (LockName::new("a b").unwrap(), FencingToken::new(7).unwrap());
        assert_eq!(read(b"7 a b"), Some(Forced { lock, token }));
        for bad in [&b"7"[..], b"0 a", b"x a", b"7 "] {
            assert_eq!(read(bad), None);
        }
    }
}
