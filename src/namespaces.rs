//! The table of served namespaces. [`crate::stores`] fills it, and replaces it when the configuration changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;
use crate::locks::Locks;
use crate::metrics::{Metrics, NamespaceMetrics, calls};
use crate::name::Namespace;

mod first_contact;

/// The interval at which a removed namespace is checked for open calls.
const IDLE_POLL: Duration = Duration::from_millis(10);

/// Namespaces by name.
pub(crate) type Table = BTreeMap<String, Served>;

/// A namespace in the table.
#[derive(Debug, Clone)]
pub struct Served {
    pub(crate) locks: Locks,
    pub(crate) metrics: Option<Arc<NamespaceMetrics>>,
}

impl Served {
    /// The name of the namespace.
    pub fn namespace(&self) -> &Namespace {
        self.locks.namespace()
    }

    /// Ends waiting calls and streams with DRAINING, because another server may serve the namespace. Lets other calls
    /// finish for up to `limit`, and closes the backend. Held leases stay in the store.
    pub async fn retire(self, limit: Duration) {
        self.locks.drain();
        let calls_end = async {
            while !self.locks.is_idle() {
                sleep(IDLE_POLL).await;
            }
        };
        if timeout(limit, calls_end).await.is_err() {
            tracing::warn!(namespace = %self.locks.namespace(), "calls of a removed namespace did not end in time");
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
    /// Notifies of each new table, and of each store that has served for the first time.
    changed: Arc<watch::Sender<()>>,
    /// The namespaces whose stores have not served since the start, and are waited for.
    not_yet_served: Arc<Mutex<BTreeSet<String>>>,
    draining: Arc<AtomicBool>,
    metrics: Option<Metrics>,
}

impl Namespaces {
    /// An empty table. With metrics, the namespaces added to it are measured.
    pub(crate) fn measured(metrics: Option<Metrics>) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    /// A table of these namespaces, without metrics.
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

    /// The metrics of the server, if there are any.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.metrics.as_ref()
    }

    /// The locks of a namespace. The metrics count the current call for this namespace.
    ///
    /// # Errors
    /// [`Error::InvalidField`] for an invalid name, [`Error::NamespaceNotFound`] for an unknown one.
    pub fn get(&self, namespace: &str) -> Result<Locks, Error> {
        self.count_for(namespace);
        if let Some(served) = self.table.load().get(namespace) {
            return Ok(served.locks.clone());
        }
        Namespace::new(namespace)?;
        Err(Error::NamespaceNotFound {
            namespace: namespace.into(),
        })
    }

    /// Lets the metrics count the current call for this namespace, if it is served. A call that is refused before the
    /// lookup is counted there too. The caller cannot observe this.
    pub fn count_for(&self, namespace: &str) {
        let table = self.table.load();
        let metrics = table.get(namespace).and_then(|served| served.metrics.as_ref());
        if let Some(metrics) = metrics {
            calls::count_for(metrics.calls());
        }
    }

    /// Notifies when namespaces may have been added or removed, and when a store has served for the first time. Read the table after each change, and once before the
    /// first.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The locks of all namespaces, by name.
    pub fn all(&self) -> Vec<Locks> {
        let table = self.table.load();
        table.values().map(|served| served.locks.clone()).collect()
    }

    /// Updates in the metrics the health of each store, the number of waiting calls and the leases.
    pub fn observe(&self) {
        for served in self.table.load().values() {
            if let Some(metrics) = &served.metrics {
                let locks = &served.locks;
                metrics.observe(&locks.health().borrow(), locks.waiting(), locks.ledger());
            }
        }
    }

    /// Ends every waiting acquire and every watch with DRAINING, and refuses new acquires.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.all().iter().for_each(Locks::drain);
    }

    /// The server is about to drain, until `end`: no place in a queue is kept longer.
    pub(crate) fn drains_until(&self, end: Instant) {
        self.all().iter().for_each(|locks| locks.drains_until(end));
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Lets open calls finish for a bounded time, and closes the stores.
    pub async fn close(&self) {
        let all = self.all();
        futures::future::join_all(all.iter().map(Locks::end)).await;
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Replaces the table. If the server drains, the new namespaces drain too.
    pub(crate) fn replace(&self, table: Table) {
        self.not_yet_served
            .lock()
            .retain(|namespace| table.contains_key(namespace));
        self.table.store(Arc::new(table));
        self.changed.send_replace(());
        if self.is_draining() {
            self.drain();
        }
    }
}
