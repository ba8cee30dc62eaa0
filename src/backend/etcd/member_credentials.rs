//! Replaces this server's credentials for the members while calls are in flight.
//!
//! A client keeps the credentials that it was made with. So new credentials need a new client per member. Calls use the
//! new client after it answered a status request; until then, and while a member rejects the new credentials, calls use
//! the old client. Open streams stay on their connection, except those of the sessions: they detect broken connections,
//! so they move to the connection of the calls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{Client, ConnectOptions, StatusResponse};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::cluster_client::{ClusterClient, Failure, Member, failure};
use super::settings::Credentials;

/// The first and shortest pause between two tries of new credentials, and the longest one: etcd needs much CPU time to
/// check a password.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// This server's credentials, and the state of their replacement.
pub struct MemberCredentials {
    proof: ArcSwap<Credentials>,
    ways: watch::Sender<Connections>,
    /// Notified when a call failed.
    hurry: Arc<Notify>,
    /// The task that makes clients with the latest credentials. It is aborted by the next replacement, or when this is
    /// dropped.
    renewal: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// Counts the changes of the connection that calls go over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    /// The replacements of the connection.
    pub renewed: u64,
    /// The replacements after which it is unknown whether the store is the same.
    pub broken: u64,
}

impl MemberCredentials {
    /// Starts with these credentials.
    pub fn by(proof: Credentials) -> Self {
        Self {
            proof: ArcSwap::from_pointee(proof),
            ways: watch::Sender::default(),
            hurry: Arc::default(),
            renewal: Mutex::default(),
        }
    }

    /// Adds the current credentials to a client's options.
    pub fn over(&self, options: ConnectOptions) -> ConnectOptions {
        self.proof.load().over(options)
    }

    /// The changes of the connection by replaced credentials.
    pub fn ways(&self) -> watch::Receiver<Connections> {
        self.ways.subscribe()
    }

    /// See [`Connections::broken`].
    pub fn broken(&self) -> u64 {
        self.ways.borrow().broken
    }

    fn note(&self, more: Connections) {
        self.ways.send_if_modified(|ways| {
            ways.renewed += more.renewed;
            ways.broken += more.broken;
            more != Connections::default()
        });
    }

    /// Ends the pause before the next try of new credentials, because a call failed.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }
}

impl ClusterClient {
    /// Replaces the credentials. Must be called within a tokio runtime.
    pub fn prove_by(self: &Arc<Self>, proof: Credentials) {
        if **self.proving.proof.load() == proof {
            return;
        }
        self.proving.proof.store(Arc::new(proof));
        let renewal = tokio::spawn(renew(Arc::downgrade(self), Arc::clone(&self.proving.hurry)));
        let mut current = self.proving.renewal.lock();
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
        let new = new.map_err(|_| no_answer(member))?.map_err(|error| failure(&error))?;
        let now = self.status(new.clone()).await?;
        let is_whole = match known.as_ref().map(|known| compare(known, &now)) {
            Ok(Comparison::Behind) => {
                return Err(Failure::Unavailable(format!(
                    "etcd at {} is at a lower revision than before",
                    member.url
                )));
            }
            Ok(Comparison::Same) => true,
            Ok(Comparison::Unrelated) | Err(_) => false,
        };
        let is_current = self.is_current(at);
        let broken = u64::from(is_current && !is_whole);
        // As after any broken connection, nothing is granted over the next one before the token base was established
        // over it. The count rises before and after the switch, so that a base that is established over the old
        // connection in between does not count.
        self.proving.note(Connections { renewed: 0, broken });
        member.client.store(Arc::new(OnceCell::new_with(Some(new))));
        // The member accepts the new credentials, so the keep-alives of sessions use them too.
        member.of_sessions.store(Arc::default());
        let renewed = u64::from(is_current);
        self.proving.note(Connections { renewed, broken });
        Ok(())
    }

    async fn status(&self, mut client: Client) -> Result<StatusResponse, Failure> {
        let status = timeout(self.request_timeout(), client.status()).await;
        let status = status.map_err(|_| Failure::Unavailable("etcd did not answer".into()))?;
        status.map_err(|error| failure(&error))
    }
}

fn no_answer(member: &Member) -> Failure {
    Failure::Unavailable(format!("etcd at {} did not answer", member.url))
}

/// Replaces the client of each member, with retries until all succeeded.
async fn renew(link: Weak<ClusterClient>, hurry: Arc<Notify>) {
    let (mut left, mut pause, mut warned) = (None, MIN_PAUSE, false);
    loop {
        let Some(link) = link.upgrade() else { return };
        let members = left.unwrap_or_else(|| (0..link.members().len()).collect::<Vec<_>>());
        let tried = join_all(members.iter().map(|at| link.renew(*at))).await;
        let failed = members.iter().zip(&tried).filter(|(_, tried)| tried.is_err());
        left = Some(failed.map(|(at, _)| *at).collect::<Vec<_>>());
        match tried.into_iter().find_map(Result::err) {
            None => return tracing::info!("etcd takes what proves this server now"),
            Some(failure) if !warned => {
                warned = true;
                tracing::warn!(%failure, "etcd does not take what proves this server now: the one before is used while it can be");
            }
            Some(_) => {}
        }
        drop(link);
        sleep(MIN_PAUSE).await;
        // The next try follows the pause, or a failed call.
        let _ = timeout(pause, hurry.notified()).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// How the status over a new connection compares with that over the old one.
enum Comparison {
    Same,
    /// Its revision is lower: it lags behind, or was restored from a snapshot.
    Behind,
    /// It is another cluster, or a status without a header.
    Unrelated,
}

fn compare(known: &StatusResponse, now: &StatusResponse) -> Comparison {
    let (Some(known), Some(now)) = (known.header(), now.header()) else {
        return Comparison::Unrelated;
    };
    if known.cluster_id() != now.cluster_id() {
        return Comparison::Unrelated;
    }
    match now.revision() < known.revision() {
        true => Comparison::Behind,
        false => Comparison::Same,
    }
}
