//! The index: one sorted set per namespace with the names of the locks in use.
//!
//! A name is added when its lock is used, at most once per [`FRESH`] and replica. A name is removed
//! when a listing, or the periodic cleanup of a replica, finds its lock unused for [`STALE`]. Both
//! commands are idempotent. If a removal races with a use, the next use or renewal of the lock adds
//! its name again.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use redis::from_redis_value;
use tokio::time::{Instant, sleep};

use super::Core;
use super::answer::{InspectAnswer, Tidied};
use super::ask::KeySpace;
use super::scripts;
use crate::backend::redis_server::failure::{broken, is_of_record};
use crate::backend::redis_server::reply::name_range;
use crate::backend::redis_server::script::StepRequirements;
use crate::backend::redis_server::unreadable::Unreadable;
use crate::backend::{BackendError, InspectLimit, LockPage, LockSummary, PageRequest};
use crate::name::LockName;

/// How long after its addition a replica does not add a name again.
const FRESH: Duration = Duration::from_secs(20);
/// How long a lock must have been unused before its name is removed.
const STALE: Duration = Duration::from_secs(60);
/// How many recently added names a replica remembers at most.
const RECENT_NAMES: usize = 50_000;
/// How many names are read at most for one page of a listing.
const MAX_READ: usize = 1_000;
/// The interval of a replica's cleanup.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(15);
/// How many names one page of the cleanup has.
const PAGE: usize = 100;
/// How many pages one cleanup processes at most, while most names of each page are stale.
const PAGES: usize = 200;

/// What the summary of a lock in a listing contains.
const SUMMARY: InspectLimit = InspectLimit { holders: 1, waiters: 0 };

/// The index of one namespace, and the names that this replica added recently.
#[derive(Debug)]
pub struct Index {
    key: Vec<u8>,
    recent: Mutex<RecentNames>,
    unreadable: Unreadable,
}

#[derive(Debug, Default)]
struct RecentNames {
    added: HashMap<LockName, Instant>,
    /// When the names older than [`FRESH`] were last dropped.
    pruned: Option<Instant>,
}

impl RecentNames {
    fn has(&self, lock: &LockName, now: Instant) -> bool {
        self.added.get(lock).is_some_and(|at| now - *at < FRESH)
    }

    /// Remembers a name unless [`RECENT_NAMES`] is reached. Old names are dropped at most once per
    /// [`FRESH`], because the scan of all names takes long.
    fn add(&mut self, lock: &LockName, now: Instant) {
        if self.added.len() >= RECENT_NAMES && self.pruned.is_none_or(|pruned| now - pruned >= FRESH) {
            self.pruned = Some(now);
            self.added.retain(|_, at| now - *at < FRESH);
        }
        if self.added.len() < RECENT_NAMES {
            self.added.insert(lock.clone(), now);
        }
    }
}

impl Index {
    /// The index of a namespace.
    pub fn new(space: &KeySpace) -> Self {
        Self {
            key: space.index(),
            recent: Mutex::default(),
            unreadable: Unreadable::default(),
        }
    }

    /// Adds the name of a lock that is being used. An error is ignored: the lock is missing from
    /// listings until its next use or renewal.
    pub async fn record_use(&self, core: &Core, lock: &LockName) {
        let now = Instant::now();
        if self.recent.lock().has(lock, now) {
            return;
        }
        if self.add(core, lock).await.is_ok() {
            self.recent.lock().add(lock, now);
        }
    }

    async fn add(&self, core: &Core, lock: &LockName) -> Result<(), BackendError> {
        let mut add = redis::cmd("ZADD");
        add.arg(&self.key).arg(0).arg(lock.as_str());
        core.shared.topology.command(&self.key, &add).await.map(drop)
    }

    /// Lists a page of the locks in use whose names begin with `prefix`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, core: &Core, prefix: &str, page: &PageRequest) -> Result<LockPage, BackendError> {
        let mut listing = LockPage::default();
        let mut after = page.after.clone();
        let mut read = 0;
        while read < MAX_READ {
            let names = self
                .names(core, prefix, after.as_deref(), page.size.min(100) + 1)
                .await?;
            let inspected = join_all(names.iter().map(|name| self.inspect(core, name))).await;
            read += names.len();
            let last = names.len() <= page.size.min(100);
            for (name, answer) in names.into_iter().zip(inspected) {
                if listing.locks.len() == page.size {
                    listing.next = after;
                    return Ok(listing);
                }
                if let Some((lock, answer)) = answer? {
                    self.list_or_clear(core, lock, answer, &mut listing).await?;
                }
                after = Some(name);
            }
            if last {
                return Ok(listing);
            }
        }
        listing.next = after;
        Ok(listing)
    }

    /// Inspects the lock with this name. Returns `None` if its record cannot be read, so that one damaged
    /// record does not fail the whole listing.
    async fn inspect(&self, core: &Core, name: &str) -> Result<Option<(LockName, InspectAnswer)>, BackendError> {
        let inspected = match LockName::new(name) {
            Ok(lock) => core
                .inspect(&lock, SUMMARY, Duration::ZERO)
                .await
                .map(|answer| (lock, answer)),
            Err(error) => Err(broken(error)),
        };
        self.unless_unreadable(name, inspected)
    }

    fn unless_unreadable<T>(&self, name: &str, read: Result<T, BackendError>) -> Result<Option<T>, BackendError> {
        match read {
            Err(error) if is_of_record(&error) => {
                self.unreadable.note(name, &error);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    async fn names(
        &self,
        core: &Core,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, BackendError> {
        let (from, to) = name_range(prefix, after);
        let mut range = redis::cmd("ZRANGEBYLEX");
        range.arg(&self.key).arg(from).arg(to).arg("LIMIT").arg(0).arg(limit);
        let answer = core.shared.topology.command(&self.key, &range).await?;
        from_redis_value(answer).map_err(broken)
    }

    /// Adds a lock with claims to the listing, and removes the name of a stale lock.
    async fn list_or_clear(
        &self,
        core: &Core,
        name: LockName,
        answer: InspectAnswer,
        listing: &mut LockPage,
    ) -> Result<(), BackendError> {
        let queue = answer.queue;
        if queue.holder_count + queue.waiter_count > 0 {
            listing.locks.push(LockSummary {
                lock: name,
                holders: queue.holder_count,
                waiters: queue.waiter_count,
                first: queue.holders.into_iter().next(),
            });
        } else if is_stale(answer.idle) {
            self.clear(core, &name).await?;
        }
        Ok(())
    }

    /// Removes the stale names of the next page after the name `after`.
    async fn tidy(&self, core: &Core, after: Option<String>) -> Result<TidiedPage, BackendError> {
        let names = self.names(core, "", after.as_deref(), PAGE).await?;
        let cleared = join_all(names.iter().map(|name| self.clear_if_readable(core, name)));
        let cleared: Result<Vec<bool>, _> = cleared.await.into_iter().collect();
        let stale = cleared?.into_iter().filter(|stale| *stale).count();
        Ok(TidiedPage {
            mostly_stale: stale * 2 > PAGE,
            after: names.get(PAGE - 1).cloned(),
        })
    }

    /// Like [`Index::clear`]; a name whose record cannot be read counts as not stale.
    async fn clear_if_readable(&self, core: &Core, name: &str) -> Result<bool, BackendError> {
        let cleared = match LockName::new(name) {
            Ok(lock) => self.clear(core, &lock).await,
            Err(error) => Err(broken(error)),
        };
        Ok(self.unless_unreadable(name, cleared)?.unwrap_or(false))
    }

    /// Deletes a lock's old history, and removes its name if the lock is stale: it has no claims and no
    /// history, and has been unused for [`STALE`]. Returns whether the lock is stale.
    async fn clear(&self, core: &Core, name: &LockName) -> Result<bool, BackendError> {
        let args = core.space.common(name);
        loop {
            let answer = core
                .call(&scripts::TIDY, name, &args, StepRequirements::Nothing)
                .await?;
            let tidied = Tidied::read(answer.value)?;
            if tidied.more {
                continue;
            }
            let is_stale = tidied.claims == 0 && tidied.remembered == 0 && is_stale(tidied.idle);
            if is_stale {
                self.remove(core, name).await?;
            }
            return Ok(is_stale);
        }
    }

    /// Removes a name, and adds it again if its lock was used in the meantime.
    async fn remove(&self, core: &Core, name: &LockName) -> Result<(), BackendError> {
        let mut remove = redis::cmd("ZREM");
        remove.arg(&self.key).arg(name.as_str());
        core.shared.topology.command(&self.key, &remove).await?;
        let queue = core.inspect(name, SUMMARY, Duration::ZERO).await?.queue;
        if queue.holder_count + queue.waiter_count > 0 {
            self.add(core, name).await?;
        }
        Ok(())
    }
}

fn is_stale(idle: Option<Duration>) -> bool {
    idle.is_none_or(|idle| idle > STALE)
}

/// The result of cleaning up one page of the index.
struct TidiedPage {
    /// Whether most of its names were stale.
    mostly_stale: bool,
    /// The last name of a full page; `None` at the end of the index.
    after: Option<String>,
}

/// Removes stale names periodically until the namespace is closed, because locks that are never listed
/// would otherwise stay in the index.
pub async fn tidy(core: Weak<Core>) {
    let mut after = None;
    loop {
        sleep(CLEANUP_INTERVAL).await;
        let Some(core) = core.upgrade() else {
            return;
        };
        for _ in 0..PAGES {
            // If the store is unavailable, the next cleanup continues here.
            let Ok(tidied) = core.index.tidy(&core, after.clone()).await else {
                break;
            };
            after = tidied.after;
            if !tidied.mostly_stale || after.is_none() {
                break;
            }
        }
    }
}
