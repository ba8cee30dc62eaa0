//! The database that this server used last, as a file in its data directory says, so that tables which were created anew while
//! the server did not run are noticed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::origin::Origin;
use crate::backend::driver::StoreIdentity;
use crate::files;

/// The name of the file in the data directory.
const FILE: &str = "used-databases.json";
/// How long the disk may take. A database on another machine must not depend on it.
const DISK: Duration = Duration::from_secs(2);

/// What the file has of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    store: StoreIdentity,
    origin: Origin,
}

/// The entry of one store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastUsed(Option<(PathBuf, StoreIdentity)>);

impl LastUsed {
    /// That of this store; without a directory nothing is kept.
    pub fn new(data_dir: Option<&Path>, store: StoreIdentity) -> Self {
        Self(data_dir.map(|folder| (folder.join(FILE), store)))
    }

    /// The database that was used last; the default one if that is not known.
    ///
    /// # Errors
    /// The system's, and that a file is damaged: that would hide that tables are new.
    pub fn read(&self) -> io::Result<Origin> {
        let Some((file, store)) = &self.0 else {
            return Ok(Origin::default());
        };
        let entry = entries(file)?.into_iter().find(|entry| entry.store.is_same(store));
        Ok(entry.map(|entry| entry.origin).unwrap_or_default())
    }

    /// Records, durably, that this database is used: the last one that is there, so that a write which comes late replaces no
    /// later one.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Cancellation safety
    /// A dropped call may still write the record.
    pub async fn write(&self, used: Arc<Mutex<Origin>>) -> io::Result<()> {
        let Some((file, store)) = self.0.clone() else {
            return Ok(());
        };
        let write = spawn_blocking(move || {
            files::make_folder(files::folder_of(&file))?;
            // Others of this machine may have the same directory.
            let _locked = files::lock(&file.with_extension("lock"))?;
            let mut entries = entries(&file)?;
            entries.retain(|entry| !entry.store.is_same(&store));
            entries.push(Entry {
                store,
                origin: *used.lock(),
            });
            files::replace(&file, &serde_json::to_vec_pretty(&entries)?)
        });
        let written = timeout(DISK, write).await.map_err(|_| io::ErrorKind::TimedOut)?;
        written.map_err(io::Error::other)?
    }
}

fn entries(file: &Path) -> io::Result<Vec<Entry>> {
    let Some(bytes) = files::read_record(file)? else {
        return Ok(Vec::new());
    };
    let damaged = |error| io::Error::other(format!("{}: {error}", file.display()));
    serde_json::from_slice(&bytes).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(tables: i64) -> Origin {
        Origin {
            tables,
            ..Origin::default()
        }
    }

    async fn write(last_used: &LastUsed, tables: i64) {
        last_used.write(Arc::new(Mutex::new(origin(tables)))).await.unwrap();
    }

    // G201
    #[tokio::test]
    async fn a_write_that_comes_late_writes_what_is_used_by_then() {
        let folder = tempfile::tempdir().unwrap();
        let last_used = LastUsed::new(Some(folder.path()), StoreIdentity::new("one".into(), &["a:1".into()]));
        let used = Arc::new(Mutex::new(origin(1)));
        // The disk stands still for as long as another one has the lock.
        let file = folder.path().join(FILE).with_extension("lock");
        let locked = files::lock(&file).unwrap();
        let error = last_used.write(Arc::clone(&used)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        *used.lock() = origin(2);
        drop(locked);
        while last_used.read().unwrap() == Origin::default() {
            tokio::task::yield_now().await;
        }
        assert_eq!(last_used.read().unwrap(), origin(2));
    }

    // G201
    #[tokio::test]
    async fn each_store_has_its_own_entry_and_a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, servers: &[&str]| {
            let servers: Vec<_> = servers.iter().map(|server| (*server).to_owned()).collect();
            LastUsed::new(Some(folder.path()), StoreIdentity::new(name.into(), &servers))
        };
        let (one, other) = (of("one", &["a:1", "b:1"]), of("other", &["a:1"]));
        assert_eq!(one.read().unwrap(), Origin::default());
        write(&one, 1).await;
        write(&other, 2).await;
        write(&one, 3).await;
        // Its servers are replaced one by one.
        assert_eq!(of("one", &["b:1", "c:1"]).read().unwrap(), origin(3));
        assert_eq!(other.read().unwrap(), origin(2));
        std::fs::write(folder.path().join(FILE), "[{").unwrap();
        let refused = one.read().unwrap_err();
        assert!(refused.to_string().contains(FILE), "{refused}");
    }
}
