//! Tells the other replicas about forced releases, by records under one prefix that expire. A record is written in the
//! transaction of its release. Safety does not depend on it: without it, the lease's next renewal finds the end.

use std::sync::Arc;

use etcd_client::{EventType, TxnOp};
use futures::stream::{self, BoxStream, StreamExt};

use super::Replica;
use crate::backend::Forced;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::conditions::put_on;
use crate::backend::etcd::data::keys::behind;
use crate::backend::etcd::lock_state::watch::{next_message, open_range};
use crate::name::{FencingToken, LockName};

impl Replica {
    /// The write by which the step that forcibly releases a claim tells the other replicas.
    ///
    /// # Errors
    /// When the bucket's lease was not granted.
    pub async fn tell_forced(&self, name: &LockName, token: FencingToken) -> Result<TxnOp, Failure> {
        let bucket = self.history.bucket().await?;
        Ok(put_on(bucket, self.keys.forced(token), name.as_str()))
    }

    /// The claims that are forcibly released from now on. Ends when the watch breaks.
    pub fn forced(self: Arc<Self>) -> BoxStream<'static, Forced> {
        let opened = async move {
            let prefix = self.keys.all_forced();
            let range_end = behind(&prefix);
            let events = open_range(&self.link, prefix, range_end).await.ok()?;
            Some((events, self.keys.clone()))
        };
        let messages = stream::once(opened).filter_map(|opened| async { opened });
        messages
            .flat_map(|(events, keys)| {
                stream::unfold((events, keys), |(mut events, keys)| async move {
                    let message = next_message(&mut events).await.ok()?;
                    let puts = message
                        .events()
                        .iter()
                        .filter(|event| event.event_type() == EventType::Put);
                    let forced = puts.filter_map(|event| {
                        let record = event.kv()?;
                        Some(Forced {
                            lock: LockName::new(record.value_str().ok()?).ok()?,
                            token: keys.forced_token(record.key())?,
                        })
                    });
                    let forced: Vec<_> = forced.collect();
                    Some((stream::iter(forced), (events, keys)))
                })
                .flatten()
            })
            .boxed()
    }
}
