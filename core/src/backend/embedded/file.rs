//! The file of a durable store: three tables in redb.
//!
//! The format is a promise: a release reads the files that every earlier release of the same [`FORMAT`] wrote
//! (`tests/embedded/golden`), and refuses those of another. A change of the tables, keys or records needs another number
//! unless such files are read as before.
//!
//! If the file disappears, the namespace serves nothing until a restart: a new file would grant what clients of the
//! old one still hold.
//!
//! # Why redb, and not a write-ahead log
//!
//! A commit costs by the pages that it writes. Ended holds are keyed by the order of their ends, so that all of a
//! batch share two pages; keyed by their random secrets, each release wrote two pages of its own. The same batches,
//! with 100,000 ended holds remembered, on a busy disk of two cores (CPU time and bytes of a commit):
//!
//! | operations | by secret | by position | a log table in redb | fjall 3.1 |
//! | --- | --- | --- | --- | --- |
//! | 1 | 282 us, 38 KB | 270 us, 38 KB | 184 us, 25 KB | 90 us, 1 KB |
//! | 16 | 837 us, 154 KB | 341 us, 48 KB | 280 us, 32 KB | 260 us, 6 KB |
//! | 64 | 2,055 us, 458 KB | 526 us, 58 KB | 419 us, 48 KB | 444 us, 14 KB |
//!
//! A log would save 5 us more for each operation of a batch of 16. It would turn one file into a folder with journals
//! of 64 MB, and need checks of our own for files that are in use, replaced, cut short or damaged, which redb has.

use std::collections::HashMap;
use std::fs::{File as StdFile, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::history::Ended;
use super::record::{self, RecordError};
use super::txn_context::{NamespaceId, RecordKey, WriteSet};
use crate::backend::local_clock::NO_BOOT;
use crate::files::{folder_of, make_folder, sync_folder};
use crate::name::{LockName, Namespace, Secret};
use crate::queue::{Claim, Expiry, Kept};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const HOLDERS: TableDefinition<(&str, &str, u64), &[u8]> = TableDefinition::new("holders");
/// Keyed by the order of their ends: a commit adds at one end of the table and removes at the other, so that it writes
/// few pages.
const FINISHED: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("ended");

const FORMAT: u64 = 2;
/// The whole state is in memory already; redb needs a cache for its inner pages only.
const CACHE_BYTES: usize = 8 << 20;
/// A file of at least this size is compacted once less than a quarter of it is in use.
const COMPACT_MIN_BYTES: u64 = 8 << 20;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another process, or another store of this process, has it open.
    #[error("{path:?} is in use by another process")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A later release wrote it.
    #[error("{path:?} has format {found}, and this release reads format {FORMAT}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// It is a database of another program.
    #[error("{path:?} was not written by this program")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file at the path is no longer the one that was opened.
    #[error("{path:?} was removed or replaced while it was open")]
    Replaced {
        /// Where it was.
        path: PathBuf,
    },
    /// Its pages are invalid.
    #[error("{path:?} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// An operation of the operating system failed.
    #[error("{path:?}: {source}")]
    Io {
        /// The file, or its folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] redb::Error),
    /// A record cannot be read.
    #[error("a record of lock {lock:?} cannot be read: {source}")]
    Record {
        /// The lock of the record.
        lock: String,
        /// Why it cannot be read.
        source: RecordError,
    },
}

/// The content of the file when it was opened, checked to be readable.
#[derive(Debug, Default)]
pub struct Loaded {
    pub high_water: u64,
    /// The boot by whose clock the ends of the holders are right.
    pub ends_of: u64,
    /// The device and the number of the file, which a copy does not have.
    pub inode: (u64, u64),
    holders: Vec<(Namespace, LockName, u64, Claim)>,
    /// The finished holds with their positions, unordered.
    pub finished: HashMap<Namespace, Vec<(u64, Secret, Ended)>>,
}

impl Loaded {
    /// The content of a file with these holders.
    #[cfg(test)]
    pub fn of(holders: Vec<(Namespace, LockName, u64, Claim)>) -> Self {
        Self {
            holders,
            ..Self::default()
        }
    }

    /// The holders. Each lease lives for its full span, counted from `now`; to its end, if the ends are right.
    pub fn holders(
        &self,
        now: Duration,
        ends_are_right: bool,
    ) -> impl Iterator<Item = (Namespace, LockName, u64, Claim)> + '_ {
        self.holders
            .iter()
            .cloned()
            .map(move |(namespace, name, position, mut claim)| {
                if let Some(holding) = claim.holding_mut() {
                    let end = |ends: Expiry, span| match ends_are_right {
                        true => Expiry::at(ends.known().min(now + span)),
                        false => Expiry::at(now + span),
                    };
                    holding.ends = end(holding.ends, holding.span);
                    holding.kept = holding.kept.map(|kept| Kept {
                        ends: end(kept.ends, kept.span),
                        ..kept
                    });
                }
                (namespace, name, position, claim)
            })
    }
}

/// An open file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    /// The file's identity (device and inode), independent of its path.
    inode: (u64, u64),
    database: Database,
}

impl File {
    /// Opens the file, makes it and its folder if they are missing, and reads it.
    pub fn open(path: &Path) -> Result<(Self, Loaded), FileError> {
        let io = |source| FileError::Io {
            path: path.into(),
            source,
        };
        make_folder(folder_of(path)).map_err(io)?;
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let handle = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(io)?;
        if is_new {
            sync_folder(folder_of(path)).map_err(io)?;
        }
        let inode = inode(&handle.metadata().map_err(io)?);
        // redb panics on pages that it cannot have written.
        let read = catch_unwind(AssertUnwindSafe(|| Self::read(path, handle, inode)));
        read.unwrap_or_else(|_| Err(FileError::Damaged { path: path.into() }))
    }

    fn read(path: &Path, handle: StdFile, inode: (u64, u64)) -> Result<(Self, Loaded), FileError> {
        let file = Self {
            path: path.into(),
            inode,
            database: open_database(path, handle)?,
        };
        file.check_format()?;
        let loaded = file.load()?;
        Ok((file, loaded))
    }

    /// Makes the tables of a new file, in one commit; refuses one of another format.
    fn check_format(&self) -> Result<(), FileError> {
        let transaction = self.database.begin_write().map_err(redb::Error::from)?;
        let new = transaction.list_tables().map_err(redb::Error::from)?.next().is_none();
        let found = {
            let meta = transaction.open_table(META).map_err(redb::Error::from)?;
            let found = meta.get("format").map_err(redb::Error::from)?;
            found.map(|format| format.value())
        };
        match found {
            None if new => {}
            None => {
                return Err(FileError::Foreign {
                    path: self.path.clone(),
                });
            }
            Some(FORMAT) => return Ok(()),
            Some(found) => {
                return Err(FileError::Format {
                    path: self.path.clone(),
                    found,
                });
            }
        }
        transaction.open_table(HOLDERS).map_err(redb::Error::from)?;
        transaction.open_table(FINISHED).map_err(redb::Error::from)?;
        let mut meta = transaction.open_table(META).map_err(redb::Error::from)?;
        meta.insert("format", FORMAT).map_err(redb::Error::from)?;
        drop(meta);
        Ok(transaction.commit().map_err(redb::Error::from)?)
    }

    fn load(&self) -> Result<Loaded, FileError> {
        let transaction = self.database.begin_read().map_err(redb::Error::from)?;
        let meta = transaction.open_table(META).map_err(redb::Error::from)?;
        let mut loaded = Loaded {
            high_water: meta
                .get("high_water")
                .map_err(redb::Error::from)?
                .map_or(0, |token| token.value()),
            ends_of: meta
                .get("ends_of")
                .map_err(redb::Error::from)?
                .map_or(NO_BOOT, |boot| boot.value()),
            inode: self.inode,
            ..Loaded::default()
        };
        let holders = transaction.open_table(HOLDERS).map_err(redb::Error::from)?;
        for entry in holders.iter().map_err(redb::Error::from)? {
            let (key, value) = entry.map_err(redb::Error::from)?;
            let (namespace, name, position) = key.value();
            let bad = |source| FileError::Record {
                lock: name.into(),
                source,
            };
            let claim = record::read_holder(value.value()).map_err(bad)?;
            let namespace = Namespace::new(namespace).map_err(|e| bad(e.into()))?;
            let name = LockName::new(name).map_err(|e| bad(e.into()))?;
            loaded.holders.push((namespace, name, position, claim));
        }
        let finished = transaction.open_table(FINISHED).map_err(redb::Error::from)?;
        for entry in finished.iter().map_err(redb::Error::from)? {
            let (key, value) = entry.map_err(redb::Error::from)?;
            let (namespace, position) = key.value();
            let bad = |source| FileError::Record {
                lock: namespace.into(),
                source,
            };
            let (secret, ended) = record::read_finished(value.value()).map_err(bad)?;
            let namespace = Namespace::new(namespace).map_err(|e| bad(e.into()))?;
            let finished = loaded.finished.entry(namespace).or_default();
            finished.push((position, secret, ended));
        }
        Ok(loaded)
    }

    /// Makes a batch's changes durable: one commit, one fsync.
    pub fn commit<'a>(&self, writes: WriteSet, name: impl Fn(NamespaceId) -> &'a Namespace) -> Result<(), FileError> {
        self.check_path()?;
        Ok(self.write(writes, name)?)
    }

    fn write<'a>(&self, writes: WriteSet, name: impl Fn(NamespaceId) -> &'a Namespace) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut holders = transaction.open_table(HOLDERS)?;
            let mut finished = transaction.open_table(FINISHED)?;
            for (key, record) in &writes.records {
                match (key, record) {
                    (RecordKey::Holder(namespace, lock, position), Some(record)) => {
                        holders.insert((name(*namespace).as_str(), lock.as_str(), *position), record.as_slice())?;
                    }
                    (RecordKey::Holder(namespace, lock, position), None) => {
                        holders.remove((name(*namespace).as_str(), lock.as_str(), *position))?;
                    }
                    (RecordKey::Finished(namespace, position), Some(record)) => {
                        finished.insert((name(*namespace).as_str(), *position), record.as_slice())?;
                    }
                    (RecordKey::Finished(namespace, position), None) => {
                        finished.remove((name(*namespace).as_str(), *position))?;
                    }
                }
            }
            if let Some(token) = writes.high_water {
                transaction.open_table(META)?.insert("high_water", token)?;
            }
            if let Some(boot) = writes.ends_of {
                transaction.open_table(META)?.insert("ends_of", boot)?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// The file's identity (device and inode), independent of its path.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Writes an existing value again, durably: this fails if the disk is full or broken.
    pub fn check_writable(&self) -> Result<(), FileError> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert("format", FORMAT)?;
            Ok(transaction.commit()?)
        };
        Ok(write()?)
    }

    /// Fails if the path no longer leads to this file. Writes to a file that was moved away would
    /// be lost, while another process creates a new file at the path.
    pub fn check_path(&self) -> Result<(), FileError> {
        if is_at(&self.path, self.inode) {
            return Ok(());
        }
        Err(FileError::Replaced {
            path: self.path.clone(),
        })
    }

    /// Compacts the file if it is much larger than its content. Takes as long as copying the
    /// content.
    pub fn compact_if_sparse(&mut self) -> Result<bool, FileError> {
        let size = std::fs::metadata(&self.path).map_or(0, |found| found.len());
        if size < COMPACT_MIN_BYTES {
            return Ok(false);
        }
        let transaction = self.database.begin_write().map_err(redb::Error::from)?;
        let stats = transaction.stats().map_err(redb::Error::from)?;
        drop(transaction);
        let live = stats.allocated_pages() * stats.page_size() as u64;
        if live * 4 > size {
            return Ok(false);
        }
        Ok(self.database.compact().map_err(redb::Error::from)?)
    }
}

/// Whether the path still leads to this file.
pub fn is_at(path: &Path, file: (u64, u64)) -> bool {
    std::fs::metadata(path).is_ok_and(|found| inode(&found) == file)
}

fn inode(found: &std::fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn open_database(path: &Path, handle: StdFile) -> Result<Database, FileError> {
    let opened = Database::builder().set_cache_size(CACHE_BYTES).create_file(handle);
    opened.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => FileError::InUse { path: path.into() },
        other => FileError::Database(other.into()),
    })
}
