//! What proves this server to the members, and how another takes its place while calls are under way.
//!
//! A client connects for ever with what it was made with. So for another proof each member gets another client,
//! which is shown to serve before calls go over it; until then, and where the members do not take the new proof
//! yet, the one before is used. Streams that are open stay where they are, but for those of the sessions: they
//! tell when a connection breaks, so they go where the calls go.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{Client, ConnectOptions, StatusResponse};
use futures::future::join_all;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::cluster_client::{Failure, ClusterClient, Member, failure};
use super::settings::Credentials;

/// How soon a new proof is tried again, at the least and at first; and at the most, for etcd takes its time
/// over each password.
const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(10);

/// What proves this server, and where another proof has led.
pub struct MemberCredentials {
    proof: ArcSwap<Credentials>,
    ways: watch::Sender<Connections>,
    /// A call has failed.
    hurry: Arc<Notify>,
    /// Makes the clients for the last proof that came; ended with this value, or by the next proof.
    renewal: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// What has become of the connection that calls go over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    /// How often there was another.
    pub renewed: u64,
    /// Rises where nobody knows whether another leads to the same store.
    pub broken: u64,
}

impl MemberCredentials {
    /// By this one, until it is replaced.
    pub fn by(proof: Credentials) -> Self {
        Self {
            proof: ArcSwap::from_pointee(proof),
            ways: watch::Sender::default(),
            hurry: Arc::default(),
            renewal: Mutex::default(),
        }
    }

    /// What a client is made with now.
    pub fn over(&self, options: ConnectOptions) -> ConnectOptions {
        self.proof.load().over(options)
    }

    /// What has become of the connections; changes with each that is made for another proof.
    pub fn ways(&self) -> watch::Receiver<Connections> {
        self.ways.subscribe()
    }

    /// Rises whenever a connection takes another's place of which nobody knows whether it leads to the same store.
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

    /// A call has failed: what is still to be tried is tried soon.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }
}

impl ClusterClient {
    /// Goes by another proof from now on. Must be called within a tokio runtime.
    pub fn prove_by(self: &Arc<Self>, proof: Credentials) {
        if **self.proving.proof.load() == proof {
            return;
        }
        self.proving.proof.store(Arc::new(proof));
        let renewal = tokio::spawn(renew(Arc::downgrade(self), Arc::clone(&self.proving.hurry)));
        let mut current = self.proving.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(AbortOnDropHandle::new(renewal));
    }

    /// Gives a member another client, unless none was made yet.
    async fn renew(&self, at: usize) -> Result<(), Failure> {
        let member = &self.members()[at];
        let place = member.client.load_full();
        let Some(old) = place.get() else {
            member.client.store(Arc::default());
            member.of_sessions.store(Arc::default());
            return Ok(());
        };
        // The old one is asked first: what it has said, the new one must know.
        let known = self.status(old.clone()).await;
        let new = timeout(self.wait_policy(), self.connect(member)).await;
        let new = new.map_err(|_| late(member))?.map_err(|error| failure(&error))?;
        let now = self.status(new.clone()).await?;
        let is_whole = match known.as_ref().map(|known| compare(known, &now)) {
            Ok(Known::Less) => return Err(Failure::Unavailable(format!("etcd at {} knows less than before", member.url))),
            Ok(Known::Same) => true,
            Ok(Known::Nothing) | Err(_) => false,
        };
        let is_current = self.is_current(at);
        let broken = u64::from(is_current && !is_whole);
        // As with any connection that broke, nothing is granted over the next one before the base of the tokens
        // was proven over it: neither what is sent now, nor by what is proven over the old one meanwhile.
        self.proving.note(Connections { renewed: 0, broken });
        member.client.store(Arc::new(OnceCell::new_with(Some(new))));
        // The members take the new proof: the next keep-alive of a session shows it too.
        member.of_sessions.store(Arc::default());
        let renewed = u64::from(is_current);
        self.proving.note(Connections { renewed, broken });
        Ok(())
    }

    async fn status(&self, mut client: Client) -> Result<StatusResponse, Failure> {
        let status = timeout(self.wait_policy(), client.status()).await;
        let status = status.map_err(|_| Failure::Unavailable("etcd did not answer".into()))?;
        status.map_err(|error| failure(&error))
    }
}

fn late(member: &Member) -> Failure {
    Failure::Unavailable(format!("etcd at {} did not answer", member.url))
}

/// Gives each member another client, however long that takes.
async fn renew(link: Weak<ClusterClient>, hurry: Arc<Notify>) {
    let (mut left, mut pause, mut told) = (None, SOON, false);
    loop {
        let Some(link) = link.upgrade() else { return };
        let members = left.unwrap_or_else(|| (0..link.members().len()).collect::<Vec<_>>());
        let tried = join_all(members.iter().map(|at| link.renew(*at))).await;
        let failed = members.iter().zip(&tried).filter(|(_, tried)| tried.is_err());
        left = Some(failed.map(|(at, _)| *at).collect::<Vec<_>>());
        match tried.into_iter().find_map(Result::err) {
            None => return tracing::info!("etcd takes what proves this server now"),
            Some(failure) if !told => {
                told = true;
                tracing::warn!(%failure, "etcd does not take what proves this server now: the one before is used while it can be");
            }
            Some(_) => {}
        }
        drop(link);
        sleep(SOON).await;
        // Either way it is tried again.
        let _ = timeout(pause, hurry.notified()).await;
        pause = (pause * 2).min(LATE);
    }
}

/// What the end of a new connection knows of what the end of the old one has said.
enum Known {
    Same,
    /// It is behind, or was put back from an old copy.
    Less,
    /// It is another cluster.
    Nothing,
}

fn compare(known: &StatusResponse, now: &StatusResponse) -> Known {
    let (Some(known), Some(now)) = (known.header(), now.header()) else {
        return Known::Nothing;
    };
    if known.cluster_id() != now.cluster_id() {
        return Known::Nothing;
    }
    match now.revision() < known.revision() {
        true => Known::Less,
        false => Known::Same,
    }
}
