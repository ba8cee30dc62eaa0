//! The names of the locks in use: a sorted set beside the locks.
//!
//! A name is added together with the lock's use and at most every [`FRESH`] per replica; it is
//! removed by who finds the lock unused for far longer: who lists, and each replica, which goes
//! through all names a little at a time. Both commands are idempotent, and whatever falls between
//! them is healed by the lock's next use or renewal.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::join_all;
use redis::from_redis_value;
use tokio::time::{Instant, sleep};

use super::Core;
use super::answer::{InspectAnswer, Tidied};
use super::ask::KeySpace;
use super::scripts;
use crate::backend::redis_server::failure::{broken, is_of_record};
use crate::backend::redis_server::topology::StepRequirements;
use crate::backend::redis_server::unreadable::Unreadable;
use crate::backend::{BackendError, LockPage, InspectLimit, PageRequest, LockSummary};
use crate::name::LockName;

/// For how long a name that was added is not added again.
const FRESH: Duration = Duration::from_secs(20);
/// How long a lock must have been unused to lose its name.
const STALE: Duration = Duration::from_secs(60);
/// How many names are remembered as added.
const REMEMBERED: usize = 50_000;
/// How many names one page reads at most before it says where to go on.
const READ: usize = 1_000;
/// How often a replica looks for stale names, how many at once, and how many times in a row where most
/// of them are stale.
const TIDY: Duration = Duration::from_secs(15);
const PAGE: usize = 100;
const PAGES: usize = 200;

/// What a summary shows of a lock.
const SUMMARY: InspectLimit = InspectLimit { holders: 1, waiters: 0 };

/// The names that this replica has added lately.
#[derive(Debug)]
pub struct Index {
    key: Vec<u8>,
    fresh: Mutex<RecentName>,
    unreadable: Unreadable,
}

#[derive(Debug, Default)]
struct RecentName {
    added: HashMap<LockName, Instant>,
    /// When those that are not fresh any more were last forgotten.
    swept: Option<Instant>,
}

impl RecentName {
    fn has(&self, lock: &LockName, now: Instant) -> bool {
        self.added.get(lock).is_some_and(|at| now - *at < FRESH)
    }

    /// Remembers a name while there is room. To look for room takes a while where there are very many,
    /// so it is not done for each of them.
    fn add(&mut self, lock: &LockName, now: Instant) {
        if self.added.len() >= REMEMBERED && self.swept.is_none_or(|swept| now - swept >= FRESH) {
            self.swept = Some(now);
            self.added.retain(|_, at| now - *at < FRESH);
        }
        if self.added.len() < REMEMBERED {
            self.added.insert(lock.clone(), now);
        }
    }
}

impl Index {
    /// The index of a namespace.
    pub fn new(space: &KeySpace) -> Self {
        Self {
            key: space.index(),
            fresh: Mutex::default(),
            unreadable: Unreadable::default(),
        }
    }

    fn fresh(&self) -> MutexGuard<'_, RecentName> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a lock that is being used. That it failed only shows in lists, until the next time.
    pub async fn name(&self, core: &Core, lock: &LockName) {
        let now = Instant::now();
        if self.fresh().has(lock, now) {
            return;
        }
        if self.add(core, lock).await.is_ok() {
            self.fresh().add(lock, now);
        }
    }

    async fn add(&self, core: &Core, lock: &LockName) -> Result<(), BackendError> {
        let mut add = redis::cmd("ZADD");
        add.arg(&self.key).arg(0).arg(lock.as_str());
        core.shared.topology.command(&self.key, &add).await.map(drop)
    }

    /// A page of the locks in use whose names begin with `prefix`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self, core: &Core, prefix: &str, page: &PageRequest) -> Result<LockPage, BackendError> {
        let mut listing = LockPage::default();
        let mut after = page.after.clone();
        let mut read = 0;
        while read < READ {
            let names = self
                .names(core, prefix, after.as_deref(), page.size.min(100) + 1)
                .await?;
            let looks = join_all(names.iter().map(|name| self.inspect(core, name))).await;
            read += names.len();
            let last = names.len() <= page.size.min(100);
            for (name, look) in names.into_iter().zip(looks) {
                if listing.locks.len() == page.size {
                    listing.next = after;
                    return Ok(listing);
                }
                if let Some((lock, look)) = look? {
                    self.judge(core, lock, look, &mut listing).await?;
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

    /// What a name of the index stands for; nothing where that cannot be read, which is no reason to show nobody else.
    async fn inspect(&self, core: &Core, name: &str) -> Result<Option<(LockName, InspectAnswer)>, BackendError> {
        let looked = match LockName::new(name) {
            Ok(lock) => core.inspect(&lock, SUMMARY, Duration::ZERO).await.map(|look| (lock, look)),
            Err(error) => Err(broken(error)),
        };
        self.unless_unreadable(name, looked)
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
        most: usize,
    ) -> Result<Vec<String>, BackendError> {
        let from = after
            .filter(|after| *after >= prefix)
            .map_or_else(|| format!("[{prefix}"), |after| format!("({after}"));
        // No UTF-8 text holds the byte 0xff.
        let to = [b"(", prefix.as_bytes(), &[0xff]].concat();
        let mut range = redis::cmd("ZRANGEBYLEX");
        range.arg(&self.key).arg(from).arg(to).arg("LIMIT").arg(0).arg(most);
        let answer = core.shared.topology.command(&self.key, &range).await?;
        from_redis_value(answer).map_err(broken)
    }

    async fn judge(&self, core: &Core, name: LockName, look: InspectAnswer, listing: &mut LockPage) -> Result<(), BackendError> {
        let queue = look.queue;
        if queue.holder_count + queue.waiter_count > 0 {
            listing.locks.push(LockSummary {
                lock: name,
                holders: queue.holder_count,
                waiters: queue.waiter_count,
                first: queue.holders.into_iter().next(),
            });
        } else if is_stale(look.idle) {
            self.clear(core, &name).await?;
        }
        Ok(())
    }

    /// Removes what is stale on the next page behind `after`, and says where to go on.
    async fn tidy(&self, core: &Core, after: Option<String>) -> Result<TidiedPage, BackendError> {
        let names = self.names(core, "", after.as_deref(), PAGE).await?;
        let judged = join_all(names.iter().map(|name| self.clear_if_readable(core, name)));
        let judged: Result<Vec<bool>, _> = judged.await.into_iter().collect();
        let stale = judged?.into_iter().filter(|stale| *stale).count();
        Ok(TidiedPage {
            mostly: stale * 2 > PAGE,
            after: names.get(PAGE - 1).cloned(),
        })
    }

    /// As [`Index::clear`]; a name whose record cannot be read is not stale.
    async fn clear_if_readable(&self, core: &Core, name: &str) -> Result<bool, BackendError> {
        let cleared = match LockName::new(name) {
            Ok(lock) => self.clear(core, &lock).await,
            Err(error) => Err(broken(error)),
        };
        Ok(self.unless_unreadable(name, cleared)?.unwrap_or(false))
    }

    /// Lets a lock forget what ended long ago, a little at a time, and removes the name of one that is not
    /// used and remembers nothing. Whether it is stale.
    async fn clear(&self, core: &Core, name: &LockName) -> Result<bool, BackendError> {
        let args = core.space.beat(name);
        loop {
            let answer = core.call(&scripts::TIDY, name, &args, StepRequirements::Nothing).await?;
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

    /// Removes a name, and adds it again if its lock was used meanwhile.
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

/// What a page of the index was found to be.
struct TidiedPage {
    /// Whether most of its names were stale.
    mostly: bool,
    /// Its last name, where it was a full page.
    after: Option<String>,
}

/// Removes stale names until the namespace is closed: locks that are used once, and never listed,
/// leave nothing behind either.
pub async fn tidy(core: Weak<Core>) {
    let mut after = None;
    loop {
        sleep(TIDY).await;
        let Some(core) = core.upgrade() else {
            return;
        };
        for _ in 0..PAGES {
            // A store that is away keeps its names until it is back.
            let Ok(tidied) = core.index.tidy(&core, after.clone()).await else {
                break;
            };
            after = tidied.after;
            if !tidied.mostly || after.is_none() {
                break;
            }
        }
    }
}
