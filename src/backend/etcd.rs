//! etcd: linearizable locks on the store that a cluster already runs (CP).
//!
//! [`Store::open`] reaches a cluster; each namespace is cut from it with [`Store::namespace`]. Keys
//! under `<root>/<namespace>/`: a lock's holders, each on its own etcd lease, are ahead of its
//! waiters, who live on the session of the replica that entered them.
//!
//! The rooms, from the request inwards: [`enter`] with [`adopt`], [`promote`], [`leave`], [`renew`] and
//! [`look`] are the trait's verbs over one [`Replica`]; [`grant`] is the step that all grants end in;
//! [`scenes`] is what happens on locks that this replica waits for, [`notifications`] what its waiters hear of it,
//! [`watching`] what people see; [`arrivals`] keeps those in order who come to a queue, and [`under_way`] a
//! place there for each; [`turns`] is the group commit of all steps, and [`calls`]
//! knows which of them were answered; [`session`] and [`leases`] are the etcd
//! leases, [`pulse`] their signs of life, [`ends`] what is remembered, and [`past`]
//! what etcd's history tells beside it; [`names`] are those that claims are
//! known by; [`view`], [`survey`], [`record`] and [`keys`] are what is read and written; [`link`] is the way
//! to the cluster, [`proving`] what proves this server there, and [`checks`] what it is asked about itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use self::admission::AdmissionQueue;
use self::calls::Calls;
use self::history::History;
use self::keys::Keys;
use self::leases::Leases;
use self::cluster_client::ClusterClient;
use self::key_pool::KeyPool;
use self::lock_watch::LockWatches;
use self::session::Session;
use self::settings::{Credentials, Settings};
use self::batches::StepBatcher;
use self::in_flight::InFlight;
use self::notifications::NotificationSender;
use self::watching::Watching;
use super::{
    Backend, BackendError, ReleaseOutcome, Guarantee, Health, ReleaseTarget, LockPage, InspectLimit, NewClaim, Capabilities, PageRequest, WaitPolicy,
    AcquireOutcome, RenewOutcome, WatchEvent, Notification,
};
use crate::claim::{Holder, Queue};
use crate::name::{FencingToken, LeaseKey, LockName, Namespace, Ttl};

mod adopt;
mod deferred;
mod admission;
mod calls;
mod cluster_checks;
mod clock;
mod history;
mod acquire;
mod grant;
mod keys;
mod leases;
mod release;
mod cluster_client;
mod inspect;
mod key_pool;
mod batch_packing;
mod holder_history;
mod member_credentials;
mod lease_keep_alive;
mod record;
mod renew;
mod lock_watch;
mod session;
pub mod settings;
mod snapshot;
mod promote;
mod batches;
mod in_flight;
mod view;
mod notifications;
mod watching;

/// How long a lost wake may stay unnoticed.
const RECHECK: Duration = Duration::from_secs(5);

/// A cluster that namespaces are cut from.
#[derive(Debug, Clone)]
pub struct Store {
    link: Arc<ClusterClient>,
    settings: Settings,
}

impl Store {
    /// Reaches for a cluster; whether it answers shows in the health of its namespaces.
    pub fn open(settings: Settings) -> Self {
        Self {
            link: Arc::new(ClusterClient::new(&settings)),
            settings,
        }
    }

    /// Lets each new connection show this from now on, once the members take it. Open ones stay. Must be called
    /// within a tokio runtime.
    pub fn prove_by(&self, proof: Credentials) {
        self.link.prove_by(proof);
    }

    /// The locks of one namespace. Must be called within a tokio runtime: tasks keep its session
    /// alive until it is closed.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        Arc::new(self.cut(namespace))
    }

    fn cut(&self, namespace: &Namespace) -> Etcd {
        let keys = Keys::new(&self.settings.root, namespace);
        let link = Arc::clone(&self.link);
        let leases = Arc::new(Leases::new(Arc::clone(&link)));
        let names = Arc::new(KeyPool::default());
        let session = Arc::new(Session::new(
            keys.clone(),
            Arc::clone(&link),
            (Arc::clone(&leases), Arc::clone(&names)),
            self.settings.session_ttl,
            self.settings.timeout,
        ));
        let ends = Arc::new(History::new(keys.clone(), Arc::clone(&link), Arc::clone(&leases)));
        let notifications = Arc::new(NotificationSender::default());
        let scenes = LockWatches::new(
            keys.clone(),
            Arc::clone(&link),
            Arc::clone(&notifications),
            session.closed().clone(),
        );
        let lost = Arc::clone(&scenes);
        tokio::spawn(Arc::clone(&session).run(move || lost.lose_all()));
        let expiries = Arc::clone(&ends).watch_expiries();
        tokio::spawn(session.closed().clone().run_until_cancelled_owned(expiries));
        Etcd {
            replica: Arc::new(Replica {
                turns: Arc::new(StepBatcher::begin(Arc::clone(&link))),
                calls: Arc::default(),
                keys,
                link,
                leases,
                session,
                ends,
                scenes,
                names,
                arrivals: AdmissionQueue::default(),
                under_way: InFlight::default(),
            }),
            notifications,
        }
    }
}

/// This server in one namespace of a cluster.
#[derive(Debug)]
struct Replica {
    keys: Keys,
    link: Arc<ClusterClient>,
    leases: Arc<Leases>,
    session: Arc<Session>,
    ends: Arc<History>,
    scenes: Arc<LockWatches>,
    names: Arc<KeyPool>,
    arrivals: AdmissionQueue,
    under_way: InFlight,
    turns: Arc<StepBatcher>,
    calls: Arc<Calls>,
}

/// One namespace of a cluster.
struct Etcd {
    replica: Arc<Replica>,
    notifications: Arc<NotificationSender>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("link", &self.replica.link)
            .finish_non_exhaustive()
    }
}

impl Etcd {
    /// The replica, unless the namespace is closed.
    fn replica(&self) -> Result<&Replica, BackendError> {
        if self.replica.session.closed().is_cancelled() {
            return Err(BackendError::NotSent {
                reason: "the namespace is closed".into(),
            });
        }
        Ok(&self.replica)
    }
}

#[async_trait]
impl Backend for Etcd {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let replica = self.replica()?;
        if replica.calls.has_left(claim.call) {
            return Ok(AcquireOutcome::Cancelled);
        }
        let line = match claim.wait_policy {
            WaitPolicy::Try => None,
            WaitPolicy::Wait => Some(replica.arrivals.acquire(lock).await),
        };
        let ready = replica.session.ready().await;
        if let (Err(_), Some(line)) = (&ready, &line) {
            line.failed();
        }
        // Only now: a call that is not sent needs no name, and one that waits for its turn or for a session is not
        // to bring a name that was given up meanwhile.
        let (ticket, named) = (ready?, replica.names.acquire(claim));
        let place = replica.acquire((line, ticket), lock, &named).await?;
        replica.names.resolve(claim, named.id, &place);
        Ok(place)
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let replica = self.replica()?;
        if replica.calls.has_left(claim.call) {
            return Ok(AcquireOutcome::Cancelled);
        }
        let named = replica.names.of(claim);
        let place = replica.promote(lock, &named).await?;
        replica.names.resolve(claim, named.id, &place);
        Ok(place)
    }

    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let replica = self.replica()?;
        let named = next.map(|next| replica.names.of(next));
        let name;
        let leaving = match who {
            ReleaseTarget::Call(claim, call) => {
                name = replica.names.of_id(claim);
                ReleaseTarget::Call(&name, call)
            }
            other => other,
        };
        let departure = replica.release(lock, leaving, named.as_deref()).await?;
        if let ReleaseTarget::Call(claim, _) = who {
            replica.names.release(claim);
        }
        if let (Some(next), Some(_)) = (next, &departure.next) {
            replica.names.release(&next.id);
        }
        Ok(departure)
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        Ok(self.replica()?.renew(lease, ttl).await?)
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        Ok(self.replica()?.inspect(lock, most).await?)
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        Ok(self.replica()?.holder_of(lock, token).await?)
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        Ok(self.replica()?.list(prefix, &page).await?)
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        let closed = self.replica.session.closed().clone();
        let names = Arc::clone(&self.replica.names);
        let notifications = self.notifications.open().map(move |wake| names.wake(wake));
        notifications.take_until(closed.cancelled_owned()).boxed()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        let watching = Watching::new(Arc::clone(&self.replica), lock.clone());
        let closed = self.replica.session.closed().clone();
        stream::unfold(Some(watching), |watching| async move {
            let mut watching = watching?;
            match watching.next().await {
                Ok(seen) => Some((Ok(seen), Some(watching))),
                Err(failure) => Some((Err(failure.into()), None)),
            }
        })
        .take_until(closed.cancelled_owned())
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "etcd",
            guarantee: Guarantee::Cp,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            global_order: true,
            recheck: Some(RECHECK),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.replica.session.health()
    }

    async fn close(&self) {
        self.replica.session.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Refusal;

    #[tokio::test]
    async fn calls_that_an_absent_store_refuses_use_up_no_name() {
        let nowhere = Settings {
            timeout: Duration::from_millis(20),
            ..Settings::new(vec!["http://127.0.0.1:1".into()])
        };
        let etcd = Store::open(nowhere).cut(&Namespace::new("n").unwrap());
        let (lock, names) = (LockName::new("a").unwrap(), &etcd.replica.names);
        let free = NewClaim::numbered(1);
        names.resolve(&free, free.id, &AcquireOutcome::Refused(Refusal::Full { limit: 1 }));
        for number in 2..10 {
            let refused = etcd.acquire(&lock, &NewClaim::numbered(number)).await;
            assert!(refused.is_err_and(|error| error.is_without_effect()));
        }
        assert_eq!(names.acquire(&NewClaim::numbered(10)).id, free.id);
    }
}
