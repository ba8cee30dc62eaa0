//! The table of namespaces that calls look into, and nothing else. [`crate::stores`] fills it, and replaces it when
//! the configuration changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::locks::Locks;
use crate::metrics::{Metrics, NamespaceMetrics, calls};
use crate::name::Namespace;

/// How often a namespace that is no longer served is asked whether its calls are over.
const ASK_IDLE: Duration = Duration::from_millis(10);

/// Namespaces by name.
pub(crate) type Table = BTreeMap<String, Served>;

/// A namespace in the table.
#[derive(Debug, Clone)]
pub struct Served {
    pub(crate) locks: Locks,
    pub(crate) metrics: Option<Arc<NamespaceMetrics>>,
}

impl Served {
    /// Which one it is.
    pub fn namespace(&self) -> &Namespace {
        self.locks.namespace()
    }

    /// Ends waiting calls and streams with DRAINING, for another server may serve it; lets other calls
    /// finish for up to `grace`, and closes the backend. Held leases stay in the store.
    pub async fn retire(self, grace: Duration) {
        self.locks.drain();
        let calls_end = async {
            while !self.locks.is_idle() {
                sleep(ASK_IDLE).await;
            }
        };
        if timeout(grace, calls_end).await.is_err() {
            tracing::warn!(namespace = %self.locks.namespace(), "calls of a namespace that is gone did not end in time");
        }
        self.close().await;
    }

    pub(crate) async fn close(self) {
        self.locks.close().await;
        if let Some(metrics) = self.metrics {
            metrics.retire();
        }
    }
}

/// The table of namespaces. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Namespaces {
    table: Arc<ArcSwap<Table>>,
    /// Tells of each new table.
    changed: Arc<watch::Sender<()>>,
    draining: Arc<AtomicBool>,
    metrics: Option<Metrics>,
}

impl Namespaces {
    /// A table that is still empty, of namespaces that are measured where there are metrics.
    pub(crate) fn measured(metrics: Option<Metrics>) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    /// A table of these.
    pub fn new(all: Vec<Locks>) -> Self {
        let named = all.into_iter().map(|locks| {
            let served = Served { locks, metrics: None };
            (served.locks.namespace().to_string(), served)
        });
        Self {
            table: Arc::new(ArcSwap::from_pointee(named.collect())),
            ..Self::default()
        }
    }

    /// The metrics of the server, where it has any.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.metrics.as_ref()
    }

    /// The locks of a namespace. A call that is measured is measured as one of it.
    ///
    /// # Errors
    /// [`Error::InvalidField`] for a bad spelling, [`Error::NamespaceNotFound`] for an unknown one.
    pub fn get(&self, namespace: &str) -> Result<Locks, Error> {
        self.concern(namespace);
        if let Some(served) = self.table.load().get(namespace) {
            return Ok(served.locks.clone());
        }
        Namespace::new(namespace)?;
        Err(Error::NamespaceNotFound {
            namespace: namespace.into(),
        })
    }

    /// Notes that the call under way is about a namespace, if it is served: what is refused before
    /// anything is looked up counts there too. Its caller sees nothing of that.
    pub fn concern(&self, namespace: &str) {
        let table = self.table.load();
        let metrics = table.get(namespace).and_then(|served| served.metrics.as_ref());
        if let Some(metrics) = metrics {
            calls::concerns(metrics.calls());
        }
    }

    /// Tells when namespaces may have come or gone. Look them up after each change, and once before the first.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// All, by name.
    pub fn all(&self) -> Vec<Locks> {
        let table = self.table.load();
        table.values().map(|served| served.locks.clone()).collect()
    }

    /// Notes in the metrics how each store is, and how many calls wait.
    pub fn observe(&self) {
        for served in self.table.load().values() {
            if let Some(metrics) = &served.metrics {
                metrics.observe(&served.locks.health().borrow(), served.locks.waiting());
            }
        }
    }

    /// Ends every waiting acquire and every watch with DRAINING, and refuses new acquires.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.all().iter().for_each(Locks::drain);
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Finishes what is under way and lets go of the stores, for a bounded time.
    pub async fn close(&self) {
        let all = self.all();
        futures::future::join_all(all.iter().map(Locks::end)).await;
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Serves these from now on. A table that drains goes on draining with what is new in it.
    pub(crate) fn replace(&self, table: Table) {
        self.table.store(Arc::new(table));
        self.changed.send_replace(());
        if self.is_draining() {
            self.drain();
        }
    }
}
