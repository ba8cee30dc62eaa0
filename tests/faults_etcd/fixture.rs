//! Two replicas of one namespace on a shared etcd, each behind a proxy of its own, and an etcd client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{Client, GetOptions, PutOptions};
use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::backend::{AcquireOutcome, Backend, BackendError, ClaimLimits, Health, NewClaim, Notification};
use fencepost::name::{LockName, Namespace};
use futures::StreamExt;

use crate::claims::{Asking, ROOMY, claim};
use crate::proxy::{Caught, Fate, Proxy};
use crate::replica::{Held, Replica};
use crate::servers::{Cluster, available};

/// A TTL that does not end within a test.
pub const LONG: Duration = Duration::from_secs(60);
/// The limits of a namespace that remembers nothing of what is over.
pub const FORGETFUL: ClaimLimits = ClaimLimits { finished: 0, ..ROOMY };
/// The key of the token base.
pub const BASE: &str = "token_base";
/// The namespace of every case; each case has a root of its own.
const NAMESPACE: &str = "conditions";
/// How long a request may take. A test holds calls for much less.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long a session outlives its replica: long, so that none ends on a busy machine.
pub const SESSION_TTL: Duration = Duration::from_secs(60);

/// A lock name that is known to be good.
pub fn lock(name: &str) -> LockName {
    LockName::new(name).expect("a good lock name")
}

/// A namespace that is known to be good.
pub fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("a good namespace")
}

/// See the module.
pub struct Fixture {
    /// The proxy between the first replica and etcd.
    pub proxy: Proxy,
    /// The proxy between the second replica and etcd.
    pub proxy_there: Proxy,
    /// The first replica.
    pub first: Arc<dyn Backend>,
    second: Arc<dyn Backend>,
    /// A client of etcd itself.
    pub etcd: Client,
    root: String,
    port: u16,
}

impl Fixture {
    /// A fresh one, where this machine has an etcd.
    pub async fn new() -> Option<Self> {
        static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
        static CASE: AtomicU32 = AtomicU32::new(0);
        // Its smallest TTL is 1.5 times its election timeout.
        let start = || {
            available().then(|| Cluster::start_with(1, &["--heartbeat-interval", "50", "--election-timeout", "500"]))
        };
        let cluster = tokio::task::spawn_blocking(move || Cluster::shared(&CLUSTER, start));
        let cluster = cluster.await.expect("the cluster starts")?;
        let root = format!("/case{}", CASE.fetch_add(1, Ordering::Relaxed));
        let port = cluster.servers[0].port();
        let (proxy, proxy_there) = (Proxy::before(port).await, Proxy::before(port).await);
        let (first, second) = (replica(&proxy, &root).await, replica(&proxy_there, &root).await);
        // The second replica may have raised the base: from now on both count from the same one.
        let once = Replica::new(&*first, NAMESPACE).on("first");
        let held = once.hold(claim("first").living(LONG - Duration::from_secs(1))).await;
        once.release(&held).await;
        let etcd = Client::connect([cluster.servers[0].url()], None).await;
        Some(Self {
            proxy,
            proxy_there,
            first,
            second,
            etcd: etcd.expect("etcd answers"),
            root,
            port,
        })
    }

    /// The case's lock, as the first replica serves it.
    pub fn here(&self) -> Replica<'_> {
        Replica::new(&*self.first, NAMESPACE)
    }

    /// The case's lock, as the second replica serves it.
    pub fn there(&self) -> Replica<'_> {
        Replica::new(&*self.second, NAMESPACE)
    }

    /// A key of the namespace, by its end.
    pub fn key(&self, end: &str) -> String {
        format!("{}/{NAMESPACE}/{end}", self.root)
    }

    /// A key of the case's lock, by its end.
    pub fn lock_key(&self, end: &str) -> String {
        self.key(&format!("lock/{}\t{end}", self.here().name()))
    }

    /// The etcd leases of the keys that begin so.
    pub async fn leases_under(&self, begin: &str) -> Vec<i64> {
        let read = self
            .etcd
            .clone()
            .get(begin, Some(GetOptions::new().with_prefix()))
            .await;
        read.expect("etcd answers").kvs().iter().map(|kv| kv.lease()).collect()
    }

    /// The etcd lease of the only holder of the case's lock.
    pub async fn lease(&self) -> i64 {
        let leases = self.leases_under(&self.lock_key("h/")).await;
        assert_eq!(leases.len(), 1, "holders: {leases:?}");
        leases[0]
    }

    /// Ends an etcd lease, with all keys on it.
    pub async fn revoke(&self, lease: i64) {
        self.etcd.clone().lease_revoke(lease).await.expect("it lives");
    }

    /// Waits until the first replica has told the call of this claim to ask again. Once a case.
    pub async fn woken(&self, claim: &NewClaim) {
        let notifications = self.first.notifications();
        let is_told =
            |wake: Notification| std::future::ready(matches!(wake, Notification::Next(_, id) if id == claim.id));
        let told = tokio::time::timeout(Duration::from_secs(10), notifications.any(is_told)).await;
        assert!(told.expect("it is told in time"), "the wakes have ended");
    }

    /// Raises the base that tokens are counted from.
    pub async fn raise_base(&self, by: u64) {
        let base = self.text(BASE).await.parse::<u64>().expect("a number");
        self.put(BASE, &(base + by).to_string()).await;
    }

    /// What is at a key of the namespace.
    pub async fn text(&self, end: &str) -> String {
        let read = self.etcd.clone().get(self.key(end), None).await.expect("etcd answers");
        let value = read.kvs().first().map(|kv| kv.value_str().expect("text").to_owned());
        value.unwrap_or_default()
    }

    /// Writes a key of the namespace by hand.
    pub async fn put(&self, end: &str, text: &str) {
        let put = self.etcd.clone().put(self.key(end), text, None).await;
        put.expect("etcd answers");
    }

    /// One more proxy before etcd.
    pub async fn another_proxy(&self) -> Proxy {
        Proxy::before(self.port).await
    }

    /// One more replica, which begins now. To it, each of these proxies is a member of the cluster.
    pub fn begin_over(&self, members: &[&Proxy]) -> Arc<dyn Backend> {
        begin(members, &self.root)
    }

    /// Copies the key of the holder of another lock to this one, by hand: a holder that no replica granted here.
    pub async fn plant_holder(&self, from: &str) {
        let mut etcd = self.etcd.clone();
        let begin = self.key(&format!("lock/{from}\th/"));
        let read = etcd
            .get(begin, Some(GetOptions::new().with_prefix()))
            .await
            .expect("etcd answers");
        let (key, value) = (read.kvs()[0].key_str().expect("text"), read.kvs()[0].value());
        let end = key.rsplit_once('\t').expect("a lock's key").1;
        let lease = etcd.lease_grant(60, None).await.expect("etcd answers").id();
        let on_lease = PutOptions::new().with_lease(lease);
        let put = etcd.put(self.lock_key(end), value, Some(on_lease)).await;
        put.expect("etcd answers");
    }

    /// Acquires with a claim at the first replica by a call whose granting or queueing step comes late; its caller is told
    /// that the outcome is unknown.
    pub async fn acquire_late(&self, claim: &NewClaim, end: &str) -> Caught {
        self.call_late(claim, &step(claim, end)).await
    }

    /// The same with a call that joins this hold: the step that writes the holder's record comes late.
    pub async fn reenter_late(&self, hold: &Held, claim: &NewClaim) -> Caught {
        self.call_late(claim, &rewriting(hold)).await
    }

    async fn call_late<P: AsRef<[u8]>>(&self, claim: &NewClaim, parts: &[P]) -> Caught {
        let mut late = self.proxy.catch(Fate::Late, parts);
        let acquired = self.first.acquire(self.here().name(), claim).await;
        assert!(
            matches!(acquired, Err(BackendError::Unavailable { .. })),
            "{acquired:?}"
        );
        late.is_here().await;
        late
    }

    /// Acquires with a claim at the first replica. `meanwhile` happens when the step that writes this key of the claim has
    /// been sent, and before it reaches etcd.
    pub async fn acquire_while(
        &self,
        claim: &NewClaim,
        end: &str,
        meanwhile: impl Future<Output = ()>,
    ) -> AcquireOutcome {
        let here = self.here();
        self.while_held(&step(claim, end), here.acquire(claim), meanwhile).await
    }

    /// The same for a newcomer that has seen the lock, finds that it fits behind all claims there, and sends the step
    /// that grants. (The step before that asks for a lock without any claim.)
    pub async fn acquire_fitting_while(
        &self,
        claim: &NewClaim,
        end: &str,
        meanwhile: impl Future<Output = ()>,
    ) -> AcquireOutcome {
        let here = self.here();
        self.while_held(&fitting(claim, end), here.acquire(claim), meanwhile)
            .await
    }

    /// Runs `call`, and `meanwhile` when the step of it that has these parts was sent and before it reaches etcd.
    pub async fn while_held<T, P: AsRef<[u8]>>(
        &self,
        parts: &[P],
        call: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let mut held = self.proxy.catch(Fate::Held, parts);
        let control = async move {
            held.is_here().await;
            meanwhile.await;
            held.let_go().await;
        };
        tokio::join!(call, control).0
    }
}

/// The parts of the step that writes the record of a claim at a key with this end, such as `q/`. (No other step has
/// both the owner and such a key.)
pub fn step(claim: &NewClaim, end: &str) -> [String; 3] {
    ["KV/Txn".to_owned(), claim.owner.as_str().to_owned(), format!("\t{end}")]
}

/// The parts of the step that grants a newcomer which has seen the lock: it names the waiters, too.
pub fn fitting(claim: &NewClaim, end: &str) -> [String; 4] {
    let [call, owner, key] = step(claim, end);
    [call, owner, key, "\tq/".to_owned()]
}

/// The parts of a step that writes the record of this hold's claim anew: it keeps the hold's secret.
pub fn rewriting(hold: &Held) -> [Vec<u8>; 2] {
    [b"KV/Txn".to_vec(), hold.claim.secret.as_bytes().to_vec()]
}

async fn replica(proxy: &Proxy, root: &str) -> Arc<dyn Backend> {
    let backend = begin(&[proxy], root);
    serves(&*backend).await;
    backend
}

fn begin(members: &[&Proxy], root: &str) -> Arc<dyn Backend> {
    let settings = Settings {
        root: root.to_owned(),
        timeout: TIMEOUT,
        session_ttl: SESSION_TTL,
        ..Settings::new(members.iter().map(|member| member.url()).collect())
    };
    Store::open(settings).namespace(&namespace(NAMESPACE))
}

/// Waits until a replica serves.
pub async fn serves(backend: &dyn Backend) {
    let mut health = backend.health();
    let served = health.wait_for(|health| *health == Health::Serving);
    let served = tokio::time::timeout(Duration::from_secs(20), served).await;
    served.expect("it serves in time").expect("it says how it is");
}
