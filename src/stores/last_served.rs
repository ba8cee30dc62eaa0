//! The store from which this server last served each namespace, as a file in its data directory says.
//!
//! Leases of a namespace live in its store alone. A server whose configuration names another store would grant locks that
//! are held in the one before. So the file has each store before the first answer of it is given, and a namespace that has
//! moved begins with a quarantine (`recorded.rs` beside this file).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::backend::driver::StoreIdentity;
use crate::files;
use crate::name::Namespace;

/// The name of the file in the data directory.
const FILE: &str = "served-stores.json";
/// How long the disk may take. A namespace on another machine's store must not depend on it.
const DISK: Duration = Duration::from_secs(2);

type Entries = BTreeMap<String, Entry>;

/// What the file has of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    identity: StoreIdentity,
    /// The longest TTL of a lease in this store.
    ttl_max_ms: u64,
}

/// A namespace, and the store that it is served from.
#[derive(Debug)]
pub(super) struct NamespaceStore {
    pub namespace: Namespace,
    pub identity: StoreIdentity,
}

/// What is known of a namespace that is opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// It is recorded as it is.
    Recorded,
    /// It was not served before, or from this store with other servers or shorter leases.
    Unrecorded,
    /// It was served from another store.
    Other {
        /// That store.
        store: StoreIdentity,
        /// The longest TTL of both stores.
        longest_ttl: Duration,
    },
}

/// The stores. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct LastServed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Absent: nothing is kept over a restart.
    file: Option<PathBuf>,
    entries: Mutex<Entries>,
    /// The longest TTL of each namespace since the start.
    longest_ttls: Mutex<BTreeMap<String, Duration>>,
}

impl LastServed {
    /// Reads the file in this directory.
    ///
    /// # Errors
    /// The system's, and that a file is damaged: that would hide that a namespace has moved.
    pub fn read(data_dir: Option<&Path>) -> io::Result<Self> {
        let file = data_dir.map(|folder| folder.join(FILE));
        let entries = file.as_deref().map(read_entries).transpose()?.unwrap_or_default();
        Ok(Self(Arc::new(Shared {
            file,
            entries: Mutex::new(entries),
            longest_ttls: Mutex::default(),
        })))
    }

    /// What is known of the namespace, which is served from this store from now on. `ttl_max` is its longest TTL there.
    pub fn open(&self, store: &NamespaceStore, ttl_max: Duration) -> Before {
        let namespace = store.namespace.to_string();
        let before = self.0.entries.lock().get(&namespace).cloned();
        let (before_ttl, is_same) = before.as_ref().map_or((Duration::ZERO, true), |entry| {
            let ttl = Duration::from_millis(entry.ttl_max_ms);
            (ttl, entry.identity.is_same(&store.identity))
        });
        let longest_ttl = before_ttl.max(ttl_max);
        let in_this = if is_same { longest_ttl } else { ttl_max };
        self.0.longest_ttls.lock().insert(namespace, in_this);
        match before {
            Some(entry) if entry == self.entry(store) => Before::Recorded,
            Some(entry) if !is_same => Before::Other {
                store: entry.identity,
                longest_ttl,
            },
            _ => Before::Unrecorded,
        }
    }

    /// Notes that leases of this namespace may be longer from now on.
    pub async fn raise_ttl(&self, namespace: &Namespace, ttl_max: Duration) {
        {
            let mut longest = self.0.longest_ttls.lock();
            let Some(known) = longest.get_mut(namespace.as_str()).filter(|known| **known < ttl_max) else {
                return;
            };
            *known = ttl_max;
        }
        {
            let mut entries = self.0.entries.lock();
            let Some(entry) = entries.get_mut(namespace.as_str()) else {
                return;
            };
            entry.ttl_max_ms = entry.ttl_max_ms.max(whole_ms(ttl_max));
        }
        if let Err(error) = self.write(namespace).await {
            tracing::warn!(%namespace, %error, "the longer ttl_max cannot be recorded in the data directory");
        }
    }

    /// Records, durably, that the namespace is served from this store.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Cancellation safety
    /// A dropped call may still write the record.
    pub async fn record(&self, store: &NamespaceStore) -> io::Result<()> {
        {
            // The TTL is read with the entries locked: one that is raised meanwhile finds the new entry.
            let mut entries = self.0.entries.lock();
            entries.insert(store.namespace.to_string(), self.entry(store));
        }
        self.write(&store.namespace).await
    }

    fn entry(&self, store: &NamespaceStore) -> Entry {
        let longest = self.0.longest_ttls.lock().get(store.namespace.as_str()).copied();
        Entry {
            identity: store.identity.clone(),
            ttl_max_ms: whole_ms(longest.unwrap_or_default()),
        }
    }

    /// Writes the entry of the namespace. The others in the file may be those of another server.
    async fn write(&self, namespace: &Namespace) -> io::Result<()> {
        let (shared, namespace) = (Arc::clone(&self.0), namespace.to_string());
        let write = spawn_blocking(move || {
            let Some(file) = &shared.file else { return Ok(()) };
            files::make_folder(files::folder_of(file))?;
            let _locked = files::lock(&file.with_extension("lock"))?;
            let mut entries = read_entries(file)?;
            // Taken behind the file's lock, so that no older content replaces a newer one.
            let entry = shared.entries.lock().get(&namespace).cloned();
            entries.extend(entry.map(|entry| (namespace, entry)));
            files::replace(file, &serde_json::to_vec_pretty(&entries)?)
        });
        let written = timeout(DISK, write).await.map_err(|_| io::ErrorKind::TimedOut)?;
        written.map_err(io::Error::other)?
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn read_entries(file: &Path) -> io::Result<Entries> {
    let Some(bytes) = files::read_record(file)? else {
        return Ok(Entries::default());
    };
    let damaged = |error| io::Error::other(format!("{}: {error}", file.display()));
    serde_json::from_slice(&bytes).map_err(damaged)
}
