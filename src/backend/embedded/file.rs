//! The file of a durable store: three tables in redb.

use std::collections::HashMap;
use std::fs::{File as StdFile, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::txn_context::{RecordKey, NamespaceId, WriteSet};
use super::lock::Claim;
use super::history::Ended;
use super::record::{self, RecordError};
use crate::name::{LockName, Namespace, Secret};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const HOLDERS: TableDefinition<(&str, &str, u64), &[u8]> = TableDefinition::new("holders");
const FINISHED: TableDefinition<(&str, [u8; 16]), &[u8]> = TableDefinition::new("finished");

const FORMAT: u64 = 1;
/// The whole state is in memory already; redb needs a cache for its inner pages only.
const CACHE_BYTES: usize = 8 << 20;
/// A file this much larger than what lives in it is worth compacting.
const COMPACT_ABOVE: u64 = 8 << 20;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another process, or another store of this one, has it open.
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
    /// It is a database, but of something else.
    #[error("{path:?} was not written by this program")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It is not where it was opened any more.
    #[error("{path:?} was removed or replaced while it was open")]
    Replaced {
        /// Where it was.
        path: PathBuf,
    },
    /// Its pages make no sense.
    #[error("{path:?} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The system failed.
    #[error("{path:?}: {source}")]
    Io {
        /// The file, or its folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] redb::Error),
    /// A record cannot be read.
    #[error("a record of lock {lock:?} cannot be read: {source}")]
    Record {
        /// Whose record.
        lock: String,
        /// What is wrong with it.
        source: RecordError,
    },
}

/// What the file held when it was opened, checked to be readable.
#[derive(Debug, Default)]
pub struct Loaded {
    pub high_water: u64,
    holders: Vec<(Namespace, LockName, u64, Claim)>,
    /// The finished holds with their places, in no order.
    pub finished: HashMap<Namespace, Vec<(u64, Secret, Ended)>>,
}

impl Loaded {
    /// What a file with these holders says.
    #[cfg(test)]
    pub fn of(holders: Vec<(Namespace, LockName, u64, Claim)>) -> Self {
        Self {
            holders,
            ..Self::default()
        }
    }

    /// The holders; each lives for its full span from `now` on.
    pub fn holders(&self, now: Duration) -> impl Iterator<Item = (Namespace, LockName, u64, Claim)> + '_ {
        self.holders
            .iter()
            .cloned()
            .map(move |(namespace, name, place, mut claim)| {
                if let Some(holding) = claim.holding_mut() {
                    holding.ends = now + holding.span;
                }
                (namespace, name, place, claim)
            })
    }
}

/// An open file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    /// Which file it is, wherever its path leads later.
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
        // redb panics over pages that it cannot have written.
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

    fn check_format(&self) -> Result<(), FileError> {
        let transaction = self.database.begin_write().map_err(redb::Error::from)?;
        let new = transaction.list_tables().map_err(redb::Error::from)?.next().is_none();
        let found = {
            let mut meta = transaction.open_table(META).map_err(redb::Error::from)?;
            let found = meta
                .get("format")
                .map_err(redb::Error::from)?
                .map(|format| format.value());
            if found.is_none() {
                meta.insert("format", FORMAT).map_err(redb::Error::from)?;
            }
            transaction.open_table(HOLDERS).map_err(redb::Error::from)?;
            transaction.open_table(FINISHED).map_err(redb::Error::from)?;
            found
        };
        match found {
            None if new => Ok(transaction.commit().map_err(redb::Error::from)?),
            None => Err(FileError::Foreign {
                path: self.path.clone(),
            }),
            Some(FORMAT) => Ok(()),
            Some(found) => Err(FileError::Format {
                path: self.path.clone(),
                found,
            }),
        }
    }

    fn load(&self) -> Result<Loaded, FileError> {
        let transaction = self.database.begin_read().map_err(redb::Error::from)?;
        let meta = transaction.open_table(META).map_err(redb::Error::from)?;
        let mut loaded = Loaded {
            high_water: meta
                .get("high_water")
                .map_err(redb::Error::from)?
                .map_or(0, |token| token.value()),
            ..Loaded::default()
        };
        let holders = transaction.open_table(HOLDERS).map_err(redb::Error::from)?;
        for entry in holders.iter().map_err(redb::Error::from)? {
            let (key, value) = entry.map_err(redb::Error::from)?;
            let (namespace, name, place) = key.value();
            let bad = |source| FileError::Record {
                lock: name.into(),
                source,
            };
            let claim = record::read_holder(value.value(), Duration::ZERO).map_err(bad)?;
            let namespace = Namespace::new(namespace).map_err(|e| bad(e.into()))?;
            let name = LockName::new(name).map_err(|e| bad(e.into()))?;
            loaded.holders.push((namespace, name, place, claim));
        }
        let finished = transaction.open_table(FINISHED).map_err(redb::Error::from)?;
        for entry in finished.iter().map_err(redb::Error::from)? {
            let (key, value) = entry.map_err(redb::Error::from)?;
            let (namespace, secret) = key.value();
            let bad = |source| FileError::Record {
                lock: namespace.into(),
                source,
            };
            let (place, ended) = record::read_finished(value.value()).map_err(bad)?;
            let namespace = Namespace::new(namespace).map_err(|e| bad(e.into()))?;
            let finished = loaded.finished.entry(namespace).or_default();
            finished.push((place, Secret::from_bytes(secret), ended));
        }
        Ok(loaded)
    }

    /// Makes a turn's changes durable: one commit, one fsync.
    pub fn commit<'a>(&self, writes: WriteSet, name: impl Fn(NamespaceId) -> &'a Namespace) -> Result<(), FileError> {
        self.check_place()?;
        Ok(self.write(writes, name)?)
    }

    fn write<'a>(&self, writes: WriteSet, name: impl Fn(NamespaceId) -> &'a Namespace) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut holders = transaction.open_table(HOLDERS)?;
            let mut finished = transaction.open_table(FINISHED)?;
            for (slot, record) in &writes.records {
                match (slot, record) {
                    (RecordKey::Holder(space, lock, place), Some(record)) => {
                        holders.insert((name(*space).as_str(), lock.as_str(), *place), record.as_slice())?;
                    }
                    (RecordKey::Holder(space, lock, place), None) => {
                        holders.remove((name(*space).as_str(), lock.as_str(), *place))?;
                    }
                    (RecordKey::Finished(space, secret), Some(record)) => {
                        finished.insert((name(*space).as_str(), *secret), record.as_slice())?;
                    }
                    (RecordKey::Finished(space, secret), None) => {
                        finished.remove((name(*space).as_str(), *secret))?;
                    }
                }
            }
            if let Some(token) = writes.high_water {
                transaction.open_table(META)?.insert("high_water", token)?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Which file this is, wherever its path leads.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Writes what is there already, durably: a disk that is full or broken says so here.
    pub fn prove_writable(&self) -> Result<(), FileError> {
        let prove = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert("format", FORMAT)?;
            Ok(transaction.commit()?)
        };
        Ok(prove()?)
    }

    /// A file that was moved away would be written on for nothing, while another process opens
    /// a new one in its place.
    pub fn check_place(&self) -> Result<(), FileError> {
        if is_at(&self.path, self.inode) {
            return Ok(());
        }
        Err(FileError::Replaced {
            path: self.path.clone(),
        })
    }

    /// Gives space back when the file is much larger than what lives in it. Takes as long as it takes
    /// to copy that.
    pub fn compact_if_worth(&mut self) -> Result<bool, FileError> {
        let size = std::fs::metadata(&self.path).map_or(0, |found| found.len());
        if size < COMPACT_ABOVE {
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

/// The folder of a file or folder.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Makes a folder durably, and those above it that are missing.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder_of(folder);
    make_folder(above)?;
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync_folder(above)),
    }
}

/// Makes the names in a folder durable: a power cut could take a new name away otherwise, and the
/// file with it, after grants were answered.
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    StdFile::open(folder)?.sync_all()
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
