//! The values of rows, which are the same in each database: ids, numbers, and the clocks of a root.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::backend::record::store::{Found, FoundRoot, LockTime, Root, ServerId, Stamp, StoreTime, Version};
use crate::name::{LockName, Namespace};

use super::error::SqlError;

/// The ids of one namespace's rows.
#[derive(Debug)]
pub struct Ids {
    /// What each id begins with: the namespace and a zero byte.
    pub namespace: Vec<u8>,
}

impl Ids {
    /// The ids of this namespace.
    pub fn of(namespace: &Namespace) -> Self {
        Self {
            namespace: [namespace.as_str().as_bytes(), &[0]].concat(),
        }
    }

    /// The id of a lock, or what the ids of locks begin with whose names have this prefix.
    pub fn id(&self, name: &str) -> Vec<u8> {
        [self.namespace.as_slice(), name.as_bytes()].concat()
    }

    /// The name of a row.
    pub fn name(&self, id: &[u8]) -> Option<LockName> {
        let name = std::str::from_utf8(id.strip_prefix(self.namespace.as_slice())?).ok()?;
        LockName::new(name).ok()
    }
}

/// When a root was written by the database's clock, and how far the lock's clock is ahead of it.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The database's clock.
    pub time: i64,
    /// How far the lock's clock is ahead.
    pub ahead: i64,
}

impl Written {
    /// The stamp of the root.
    pub fn stamp(self) -> Stamp {
        Stamp {
            clock: LockTime(time(self.time.saturating_add(self.ahead))),
            time: StoreTime(time(self.time)),
        }
    }

    /// The clocks of the root at this time of the database.
    pub fn now(self, now: i64) -> Stamp {
        Stamp {
            clock: LockTime(time(now.max(self.time)).saturating_add(time(self.ahead))),
            time: StoreTime(time(now)),
        }
    }
}

/// A row of a read: one for each root that was asked for, whether it is there or not.
#[derive(Debug)]
pub struct ReadRow {
    /// The database's clock.
    pub now: i64,
    /// The floor of the store.
    pub floor: i64,
    /// The version of the root, and when it was written, if it is there.
    pub root: Option<(i64, Written)>,
    /// For whom it is reserved, and until when.
    pub reserved: (Option<i64>, Option<i64>),
    /// Its body, unless its version is known.
    pub body: Option<Vec<u8>>,
}

impl ReadRow {
    /// What a reader finds that knows this version.
    ///
    /// # Errors
    /// [`SqlError`] for a row that this store did not write.
    pub fn found(self, known: Option<Version>) -> Result<Found, SqlError> {
        let now = StoreTime(time(self.now));
        let mut found = Found {
            now: Stamp {
                clock: LockTime(now.0),
                time: now,
            },
            root: FoundRoot::Absent,
            reserved: None,
            floor: time(self.floor),
        };
        if let Some((version, written)) = self.root {
            let version = version_of(version)?;
            found.now = written.now(self.now);
            found.root = match self.body {
                _ if known == Some(version) => FoundRoot::Known,
                body => FoundRoot::Root(Root {
                    version,
                    stamp: written.stamp(),
                    body: body.unwrap_or_default(),
                }),
            };
            found.reserved = self.reserved.0.zip(self.reserved.1).and_then(|(server, until)| {
                let server = ServerId(u64::try_from(server).ok()?.try_into().ok()?);
                Some((server, LockTime(time(until))))
            });
        }
        Ok(found)
    }
}

fn time(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or_default()
}

/// A TTL in microseconds.
pub fn micros(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
}

/// A number as the database has it.
pub fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A version as the database has it.
pub fn version(version: Version) -> i64 {
    number(version.0.get())
}

/// A root from the database. One with a version that this store did not write concerns its own lock alone: it comes without
/// its body, and so cannot be read.
pub fn root(version: i64, written: Written, body: Vec<u8>) -> Root {
    let (version, body) = match version_of(version) {
        Ok(version) => (version, body),
        Err(_) => (Version(NonZeroU64::MIN), Vec::new()),
    };
    Root {
        version,
        stamp: written.stamp(),
        body,
    }
}

/// A version from the database.
///
/// # Errors
/// [`SqlError`] for one that this store did not write.
pub fn version_of(version: i64) -> Result<Version, SqlError> {
    let version = u64::try_from(version).ok().and_then(|version| version.try_into().ok());
    version
        .map(Version)
        .ok_or_else(|| SqlError::Failed("a root has the version 0".into()))
}
