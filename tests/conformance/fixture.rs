//! What a case runs on: two replicas of one namespace of a store, and a lock that nobody used yet.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(
    feature = "redis",
    feature = "redlock",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper"
))]
use fencepost::backend::Health;
use fencepost::backend::{Backend, Capabilities};
use fencepost::name::{LockName, Namespace};

use crate::replica::Replica;
use crate::streams::NotificationSender;

/// The namespace of every case; a store opens it fresh, or under a root of its own, for each case.
pub const NAMESPACE: &str = "beds";
/// A second namespace of the same store.
pub const ELSEWHERE: &str = "elsewhere";
/// A TTL that never ends within a case.
pub const LONG: Duration = Duration::from_secs(60);

/// How long a few steps take on a busy machine.
const STEPS: Duration = Duration::from_secs(3);

/// How long a replica may take until it serves and hears.
#[cfg(any(
    feature = "redis",
    feature = "redlock",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper"
))]
pub const READY: Duration = Duration::from_secs(60);

/// A store made up for one case.
pub struct Fixture {
    /// One replica's view of the namespace.
    pub first: Arc<dyn Backend>,
    /// Another replica's; the same value where a store serves only one process.
    pub second: Arc<dyn Backend>,
    /// Another namespace of the same store.
    pub elsewhere: Arc<dyn Backend>,
    /// How its time passes.
    pub pace: Pace,
    /// What must outlive the case: a directory, a server.
    pub _keep: Box<dyn Any + Send + Sync>,
}

/// How time passes for a store.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The smallest TTL that a case may rely on.
    pub short: Duration,
    /// How much later than its TTL a lease may be found expired.
    pub slack: Duration,
    /// How long a case listens before it says that nothing came.
    pub quiet: Duration,
    /// Whether minutes cost nothing: the clock is tokio's, and paused.
    pub virtual_time: bool,
    /// Whether a renewal can ask for less than before; a store that cannot gives more.
    pub ttl_shrinks: bool,
    /// Whether a replica hears each change that others make; one that does not sees the state after them.
    pub tells_changes: bool,
}

/// Why a store cannot be had here.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// tokio's paused clock.
pub const SIMULATED: Pace = Pace {
    short: Duration::from_secs(1),
    slack: Duration::from_millis(20),
    quiet: Duration::from_millis(200),
    virtual_time: true,
    ttl_shrinks: true,
    tells_changes: true,
};

/// Real time, and servers on the same machine.
#[cfg(any(feature = "redis", feature = "redlock"))]
pub const REAL_TIME: Pace = Pace {
    short: Duration::from_millis(600),
    slack: Duration::from_millis(150),
    quiet: Duration::from_millis(200),
    virtual_time: false,
    ttl_shrinks: true,
    tells_changes: true,
};

impl Fixture {
    /// Two replicas over servers: namespaces that `open` opens in these stores. Each serves when this returns.
    #[cfg(any(
        feature = "redis",
        feature = "redlock",
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "zookeeper"
    ))]
    pub async fn over_servers<S: Any + Send + Sync>(
        stores: [S; 2],
        open: impl Fn(&S, &Namespace) -> Arc<dyn Backend>,
        pace: Pace,
    ) -> Self {
        let (here, there) = (namespace(NAMESPACE), namespace(ELSEWHERE));
        let (first, second) = (open(&stores[0], &here), open(&stores[1], &here));
        let elsewhere = open(&stores[0], &there);
        for replica in [&first, &second, &elsewhere] {
            let mut health = replica.health();
            let served = health.wait_for(|health| *health == Health::Serving);
            let served = tokio::time::timeout(READY, served).await;
            served.expect("it serves in time").expect("it says how it is");
        }
        Self {
            first,
            second,
            elsewhere,
            pace,
            _keep: Box::new(stores),
        }
    }

    /// The case's lock, as the first replica serves it.
    pub fn here(&self) -> Replica<'_> {
        Replica::new(&*self.first, NAMESPACE)
    }

    /// The case's lock, as the second replica serves it.
    pub fn there(&self) -> Replica<'_> {
        Replica::new(&*self.second, NAMESPACE)
    }

    /// The lock of the same name in another namespace.
    pub fn elsewhere(&self) -> Replica<'_> {
        Replica::new(&*self.elsewhere, ELSEWHERE)
    }

    /// What the first replica's waiters are told from now on. Once a case.
    pub fn notifications(&self) -> NotificationSender {
        NotificationSender::new(self.first.notifications(), self.pace.quiet)
    }

    /// What the store declares.
    pub fn capabilities(&self) -> Capabilities {
        self.first.capabilities()
    }

    /// The smallest TTL that a case may rely on.
    pub fn short(&self) -> Duration {
        self.pace.short
    }

    /// A TTL in which a case has time for a few steps, also on a busy machine.
    pub fn ample(&self) -> Duration {
        (5 * self.pace.short).min(self.pace.short + STEPS)
    }

    /// Whether its replicas are of two processes, as far as the store knows.
    pub fn has_two_replicas(&self) -> bool {
        !Arc::ptr_eq(&self.first, &self.second)
    }

    /// Lets time pass.
    pub async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets a TTL that was given just now run out.
    pub async fn outlive(&self, ttl: Duration) {
        self.sleep(ttl + self.pace.slack).await;
    }

    /// Whether a case may take minutes: they cost nothing, or it is a long run.
    pub fn has_minutes(&self) -> bool {
        self.pace.virtual_time || cfg!(feature = "soak")
    }
}

/// A lock name that is known to be good.
pub fn lock(name: &str) -> LockName {
    LockName::new(name).expect("a good lock name")
}

/// A namespace that is known to be good.
pub fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("a good namespace")
}
