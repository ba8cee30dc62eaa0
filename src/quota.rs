//! How much one identity, or one namespace, may do: calls a second, and leases, waiters and streams at
//! once.
//!
//! Each server counts for itself. It counts a lease that it granted until it sees the lease's end: a
//! release or a loss that passes through it, or the time to live that it knows of. One that another
//! server has released meanwhile counts until then, and one that another server renews no longer. No
//! limit ever refuses a Renew or a Release.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::auth::Pattern;
use crate::name::{ClaimId, FencingToken, Identity, LeaseKey, LockName};

mod ledger;

use self::ledger::Ledger;

/// How many identities are counted at once; one that does nothing is forgotten.
const MAX_IDENTITIES: usize = 100_000;
/// When what is full is worth another try.
const RETRY_FULL: Duration = Duration::from_secs(1);

/// How many calls a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// On the average, at least 1.
    pub per_second: u32,
    /// At once, after a rest; at least 1.
    pub burst: u32,
}

/// The limits of an identity, or of a namespace. Absent: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Calls, but for Renew and Release.
    pub rate: Option<Rate>,
    /// Leases held; an Acquire that is under way counts as one.
    pub leases: Option<u32>,
    /// Acquires with a wait that are under way.
    pub waiters: Option<u32>,
    /// Watches that are open.
    pub streams: Option<u32>,
}

impl Quota {
    fn most(&self, what: Resource) -> Option<u32> {
        match what {
            Resource::Leases => self.leases,
            Resource::Waiters => self.waiters,
            Resource::Streams => self.streams,
        }
    }
}

/// All limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaSettings {
    /// Those of each namespace that has some.
    pub namespaces: BTreeMap<String, Quota>,
    /// Those of each identity that one of these is for; the first that is counts.
    pub identities: Vec<(Vec<Pattern>, Quota)>,
}

/// Whose limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The caller's.
    Identity,
    /// The namespace's.
    Namespace,
}

impl Scope {
    /// The word for it in errors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Namespace => "namespace",
        }
    }
}

/// A limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {} may have {most} {what}", scope.word())]
pub struct OverLimit {
    /// The word for what there is too much of: `rate`, `leases`, `waiters` or `streams`.
    pub limit: &'static str,
    /// The same for people.
    pub what: &'static str,
    /// Whose limit it is.
    pub scope: Scope,
    /// How much there may be.
    pub most: u32,
    /// When another try is worth it.
    pub retry: Duration,
}

/// What there may be only so much of at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Leases,
    Waiters,
    Streams,
}

impl Resource {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Leases => ("leases", "leases at once, Acquires under way included"),
            Self::Waiters => ("waiters", "Acquires with a wait at once"),
            Self::Streams => ("streams", "watches at once"),
        }
    }
}

/// What one identity or namespace does at this moment.
#[derive(Debug, Default)]
struct Usage {
    /// Until when the calls so far take all that the rate allows, in nanoseconds since the start.
    spent_until: AtomicU64,
    leases: AtomicU32,
    waiters: AtomicU32,
    streams: AtomicU32,
}

impl Usage {
    fn count(&self, what: Resource) -> &AtomicU32 {
        match what {
            Resource::Leases => &self.leases,
            Resource::Waiters => &self.waiters,
            Resource::Streams => &self.streams,
        }
    }

    /// Counts a call, or says how soon there is room for it.
    fn spend(&self, rate: Rate, now: u64) -> Result<(), Duration> {
        let each = 1_000_000_000 / u64::from(rate.per_second.max(1));
        let allowed = each * u64::from(rate.burst.max(1));
        let spend = |until: u64| {
            let until = until.max(now) + each;
            (until <= now + allowed).then_some(until)
        };
        let spent = self
            .spent_until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        spent
            .map(drop)
            .map_err(|until| Duration::from_nanos((until + each).saturating_sub(now + allowed)))
    }

    fn is_idle(&self, now: u64) -> bool {
        let count = |what| self.count(what).load(Ordering::Relaxed);
        self.spent_until.load(Ordering::Relaxed) <= now
            && count(Resource::Leases) == 0
            && count(Resource::Waiters) == 0
            && count(Resource::Streams) == 0
    }
}

/// One of so many; free again when it is dropped.
#[derive(Debug)]
struct Permit {
    usage: Arc<Usage>,
    what: Resource,
}

impl Permit {
    fn take(usage: &Arc<Usage>, what: Resource, most: u32) -> Option<Self> {
        let more = |count: u32| (count < most).then_some(count + 1);
        let taken = usage
            .count(what)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Self {
            usage: Arc::clone(usage),
            what,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.usage.count(self.what).fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a call has taken of the limits, until it is dropped.
#[derive(Debug, Default)]
pub struct QuotaUse {
    permits: Vec<Permit>,
}

/// What an Acquire is, as far as it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Whether it waits.
    pub waits: bool,
    /// The claim that its request id names.
    pub claim: Option<ClaimId>,
}

/// What an Acquire has taken: a place among the leases, and among the waiters while it is under way.
#[derive(Debug, Default)]
pub struct AcquireQuota {
    held: QuotaUse,
    _waiting: QuotaUse,
    ledger: Option<Arc<Ledger>>,
}

impl AcquireQuota {
    /// The lease was handed over: it counts until its end is seen.
    pub fn holds(self, lease: &LeaseKey, ttl: Duration) {
        if let Some(ledger) = self.ledger.filter(|_| !self.held.permits.is_empty()) {
            ledger.add(lease, Instant::now() + ttl, self.held);
        }
    }
}

/// The limits and what is counted against them. Clones share everything.
#[derive(Debug, Clone)]
pub struct Quotas {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// Never held for longer than it takes to read or replace it.
    settings: RwLock<Arc<QuotaSettings>>,
    namespaces: Mutex<HashMap<String, Arc<Usage>>>,
    identities: Mutex<HashMap<Identity, Arc<Usage>>>,
    ledger: Arc<Ledger>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self::new(QuotaSettings::default())
    }
}

/// A limit that a call is held to.
struct Counted {
    scope: Scope,
    quota: Quota,
    usage: Arc<Usage>,
}

impl Quotas {
    /// These limits, with nothing counted yet.
    pub fn new(settings: QuotaSettings) -> Self {
        Self {
            shared: Arc::new(Shared {
                began: Instant::now(),
                settings: RwLock::new(Arc::new(settings)),
                namespaces: Mutex::default(),
                identities: Mutex::default(),
                ledger: Arc::default(),
            }),
        }
    }

    /// Other limits from now on. What was counted so far stays.
    pub fn replace(&self, settings: QuotaSettings) {
        let mut current = self.shared.settings.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(settings);
    }

    /// Counts a call of an identity.
    ///
    /// # Errors
    /// [`OverLimit`] with the time after which there is room again.
    pub fn call(&self, identity: &Identity) -> Result<(), OverLimit> {
        self.spend(self.of_identity(identity)?)
    }

    /// Counts a call in a namespace. The caller's own comes first: what its limit refuses takes nothing from
    /// the others in the namespace.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_in(&self, namespace: &str) -> Result<(), OverLimit> {
        self.spend(self.of_namespace(namespace))
    }

    fn spend(&self, counted: Option<Counted>) -> Result<(), OverLimit> {
        let rated = counted.and_then(|counted| Some((counted.quota.rate?, counted)));
        let Some((rate, counted)) = rated else { return Ok(()) };
        counted.usage.spend(rate, self.now()).map_err(|retry| OverLimit {
            limit: "rate",
            what: "calls a second",
            scope: counted.scope,
            most: rate.per_second,
            retry,
        })
    }

    /// Takes the place of an Acquire. A retry whose lease counts already takes none among the leases, so
    /// that it finds its own also where the limit is reached.
    ///
    /// # Errors
    /// [`OverLimit`]; nothing is taken then.
    pub fn acquire(&self, identity: &Identity, namespace: &str, entry: Entry) -> Result<AcquireQuota, OverLimit> {
        let counted = self.counted(identity, namespace)?;
        if counted.is_empty() {
            return Ok(AcquireQuota::default());
        }
        self.shared.ledger.forget_ended();
        let is_held = entry.claim.is_some_and(|claim| self.shared.ledger.has(claim));
        let take_if = |wanted: bool, what| {
            if wanted {
                take(&counted, what)
            } else {
                Ok(QuotaUse::default())
            }
        };
        let held = take_if(!is_held, Resource::Leases)?;
        let waiting = take_if(entry.waits, Resource::Waiters)?;
        Ok(AcquireQuota {
            held,
            _waiting: waiting,
            ledger: Some(Arc::clone(&self.shared.ledger)),
        })
    }

    /// Takes the place of a watch.
    ///
    /// # Errors
    /// [`OverLimit`]; nothing is taken then.
    pub fn stream(&self, identity: &Identity, namespace: &str) -> Result<QuotaUse, OverLimit> {
        take(&self.counted(identity, namespace)?, Resource::Streams)
    }

    /// A lease was renewed: it counts for so much longer.
    pub fn renewed(&self, lease: &LeaseKey, ttl: Duration) {
        self.shared.ledger.renewed(lease, Instant::now() + ttl);
    }

    /// A lease is gone.
    pub fn ended(&self, lease: &LeaseKey) {
        self.shared.ledger.ended(lease);
    }

    /// All leases of a token are gone.
    pub fn forced(&self, namespace: &str, name: &LockName, token: FencingToken) {
        self.shared.ledger.forced(namespace, name, token);
    }

    /// The limits that a call is held to, the caller's own first.
    fn counted(&self, identity: &Identity, namespace: &str) -> Result<Vec<Counted>, OverLimit> {
        let both = [self.of_identity(identity)?, self.of_namespace(namespace)];
        Ok(both.into_iter().flatten().collect())
    }

    fn of_identity(&self, identity: &Identity) -> Result<Option<Counted>, OverLimit> {
        let is_for = |patterns: &[Pattern]| patterns.iter().any(|one| one.matches(identity.as_str()));
        let settings = self.settings();
        let Some((_, quota)) = settings.identities.iter().find(|(who, _)| is_for(who)) else {
            return Ok(None);
        };
        Ok(Some(Counted {
            scope: Scope::Identity,
            quota: *quota,
            usage: self.usage_of(identity)?,
        }))
    }

    fn of_namespace(&self, namespace: &str) -> Option<Counted> {
        let quota = *self.settings().namespaces.get(namespace)?;
        let mut usages = self.shared.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = usages.entry(namespace.to_owned()).or_default();
        Some(Counted {
            scope: Scope::Namespace,
            quota,
            usage: Arc::clone(usage),
        })
    }

    fn settings(&self) -> Arc<QuotaSettings> {
        let settings = self.shared.settings.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&settings)
    }

    fn usage_of(&self, identity: &Identity) -> Result<Arc<Usage>, OverLimit> {
        let now = self.now();
        let mut usages = self.shared.identities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = usages.get(identity) {
            return Ok(Arc::clone(usage));
        }
        if usages.len() >= MAX_IDENTITIES {
            usages.retain(|_, usage| Arc::strong_count(usage) > 1 || !usage.is_idle(now));
        }
        if usages.len() >= MAX_IDENTITIES {
            return Err(OverLimit {
                limit: "identities",
                what: "identities with limits of their own at once, for all callers together",
                scope: Scope::Identity,
                most: MAX_IDENTITIES as u32,
                retry: RETRY_FULL,
            });
        }
        Ok(Arc::clone(usages.entry(identity.clone()).or_default()))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_nanos()).unwrap_or(u64::MAX / 2)
    }
}

/// Takes one of each limit that there is.
fn take(counted: &[Counted], what: Resource) -> Result<QuotaUse, OverLimit> {
    let mut taken = QuotaUse::default();
    for one in counted {
        let Some(most) = one.quota.most(what) else { continue };
        let permit = Permit::take(&one.usage, what, most).ok_or_else(|| {
            let (limit, what) = what.words();
            OverLimit {
                limit,
                what,
                scope: one.scope,
                most,
                retry: RETRY_FULL,
            }
        })?;
        taken.permits.push(permit);
    }
    Ok(taken)
}

#[cfg(test)]
mod tests;
