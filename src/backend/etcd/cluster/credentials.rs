//! Replaces this server's credentials for the members while calls are in flight.
//!
//! A client keeps the credentials that it was made with. So new credentials need a new client per member. Reads use the
//! new client after it answered a status request; until then, and while a member rejects the new credentials, they use
//! the old client. The connection of a session, over which it writes, goes on with its own client, so that it is known
//! what was sent over it and new credentials alone fail no call; it ends when etcd refuses a commit of the old ones.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{Client, StatusResponse};
use futures::FutureExt;
use futures::future::join_all;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::client::ClusterClient;
use super::settings::Credentials;
use super::{Failure, failure};
use crate::supervisor::supervise;

/// The first and shortest pause between two tries of new credentials, and the longest one: etcd needs much CPU time to
/// check a password.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);

impl ClusterClient {
    /// Replaces the credentials. Must be called within a tokio runtime.
    pub fn set_credentials(self: &Arc<Self>, credentials: Credentials) {
        if **self.credentials.load() == credentials {
            return;
        }
        self.credentials.store(Arc::new(credentials));
        let renewal = supervise("etcd: credentials", Arc::downgrade(self), |link| {
            renew(Weak::clone(link)).boxed()
        });
        let mut current = self.renewal.lock();
        *current = Some(AbortOnDropHandle::new(renewal));
    }

    /// Replaces a member's client, unless none was made yet.
    async fn renew(&self, at: usize) -> Result<(), Failure> {
        let member = &self.members()[at];
        let place = member.client.load_full();
        let Some(old) = place.get() else {
            member.client.store(Arc::default());
            member.of_sessions.store(Arc::default());
            return Ok(());
        };
        // The old client reads the status first: the new one must not return a lower revision.
        let known = self.status(old.clone()).await;
        let new = timeout(self.request_timeout(), self.connect(member)).await;
        let new = new
            .map_err(|_| Failure::silent(&member.url))?
            .map_err(|error| failure(&error))?;
        let now = self.status(new.clone()).await?;
        if known.is_ok_and(|known| is_behind(&known, &now)) {
            let behind = format!("{} is at a lower revision than before", member.url);
            return Err(Failure::Unavailable(behind));
        }
        member.client.store(Arc::new(OnceCell::new_with(Some(new))));
        // The member accepts the new credentials, so the next keep-alive stream of a session uses them too.
        member.of_sessions.store(Arc::default());
        self.renewals.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    async fn status(&self, mut client: Client) -> Result<StatusResponse, Failure> {
        let status = timeout(self.request_timeout(), client.status()).await;
        let status = status.map_err(|_| Failure::Unavailable("etcd did not answer".into()))?;
        status.map_err(|error| failure(&error))
    }
}

/// Replaces the client of each member, with retries until all succeeded.
async fn renew(link: Weak<ClusterClient>) {
    let (mut left, mut pause, mut warned) = (None, MIN_PAUSE, false);
    loop {
        let Some(link) = link.upgrade() else { return };
        let members = left.unwrap_or_else(|| (0..link.members().len()).collect::<Vec<_>>());
        let tried = join_all(members.iter().map(|at| link.renew(*at))).await;
        let failed = members.iter().zip(&tried).filter(|(_, tried)| tried.is_err());
        left = Some(failed.map(|(at, _)| *at).collect::<Vec<_>>());
        match tried.into_iter().find_map(Result::err) {
            None => return tracing::info!("etcd accepts the new credentials"),
            Some(failure) if !warned => {
                warned = true;
                tracing::warn!(%failure, "etcd does not accept the new credentials: those before are used while they can be");
            }
            Some(_) => {}
        }
        let call_failed = Arc::clone(&link.call_failed);
        drop(link);
        sleep(MIN_PAUSE).await;
        // The next try follows the pause, or a failed call.
        let _ = timeout(pause, call_failed.notified()).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Whether a status over a new connection has a lower revision than that over the old one: the member lags behind, or its
/// store was restored from a snapshot. Another cluster has other revisions.
fn is_behind(known: &StatusResponse, now: &StatusResponse) -> bool {
    let (Some(known), Some(now)) = (known.header(), now.header()) else {
        return false;
    };
    known.cluster_id() == now.cluster_id() && now.revision() < known.revision()
}
