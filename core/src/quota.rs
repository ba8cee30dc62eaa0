//! Limits per identity and per namespace: calls per second, and concurrent leases, waiters and streams.
//!
//! Each server counts only its own calls. A granted lease counts until the server observes its end: a release or loss
//! that passes through this server, or the expiry of the TTL known here. A lease that another server released therefore
//! still counts until its TTL expires, and a lease that another server renews stops counting then. No limit ever
//! refuses a Renew or a Release.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use self::rate::SpentRate;
use crate::auth::Pattern;
use crate::ledger::Ledger;
use crate::name::{ClaimId, Identity};
use crate::usage::{Counters, InUse};

mod acquire_quota;
mod rate;

pub use self::acquire_quota::AcquireQuota;
pub use self::rate::Rate;

/// The maximum number of identities counted at once; idle ones are forgotten.
const MAX_IDENTITIES: usize = 100_000;
/// The retry delay that a caller at a limit receives.
const RETRY_FULL: Duration = Duration::from_secs(1);

/// The limits of an identity or of a namespace. Absent: unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Calls, except Renew and Release.
    pub rate: Option<Rate>,
    /// Leases held; an Acquire in progress counts as one.
    pub leases: Option<u32>,
    /// Acquires with a wait that are in progress.
    pub waiters: Option<u32>,
    /// Open watches, and streams that keep leases.
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
    /// The limits of each namespace that has any.
    pub namespaces: BTreeMap<String, Quota>,
    /// Limits for the identities that match one of the patterns; the first match applies.
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
    /// The name of the scope in errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Namespace => "namespace",
        }
    }
}

/// A call that a limit refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {} may have {most} {what}", scope.as_str())]
pub struct QuotaExceeded {
    /// The name of the limit: `rate`, `leases`, `waiters` or `streams`.
    pub limit: &'static str,
    /// A description of the limited resource, for people.
    pub what: &'static str,
    /// Whose limit it is.
    pub scope: Scope,
    /// The limit.
    pub most: u32,
    /// When to try again.
    pub retry: Duration,
}

/// A resource that is limited to a number at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Leases,
    Waiters,
    Streams,
}

impl Resource {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Leases => ("leases", "leases at once, including Acquires in progress"),
            Self::Waiters => ("waiters", "Acquires with a wait at once"),
            Self::Streams => ("streams", "streams at once"),
        }
    }
}

/// The current use of an identity or namespace.
#[derive(Debug, Default)]
struct Usage {
    rate: SpentRate,
    leases: AtomicUsize,
    waiters: AtomicUsize,
    streams: AtomicUsize,
}

impl Usage {
    fn is_idle(&self, now: u64) -> bool {
        let is_unused = |what| self.counter(what).load(Ordering::Relaxed) == 0;
        let resources = [Resource::Leases, Resource::Waiters, Resource::Streams];
        self.rate.is_unspent(now) && resources.into_iter().all(is_unused)
    }
}

impl Counters for Usage {
    type Resource = Resource;

    fn counter(&self, what: Resource) -> &AtomicUsize {
        match what {
            Resource::Leases => &self.leases,
            Resource::Waiters => &self.waiters,
            Resource::Streams => &self.streams,
        }
    }
}

/// The units that a call uses, returned when dropped.
#[derive(Debug, Default)]
pub struct QuotaUse {
    units: Vec<InUse<Usage>>,
}

/// The properties of an Acquire that quotas depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Whether it waits.
    pub waits: bool,
    /// The claim id that its request id determines.
    pub claim: Option<ClaimId>,
}

/// The limits and the current use. Clones share both.
#[derive(Debug, Clone)]
pub struct Quotas {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// Locked only to read or replace the value.
    settings: RwLock<Arc<QuotaSettings>>,
    namespaces: Mutex<HashMap<String, Arc<Usage>>>,
    identities: Mutex<HashMap<Identity, Arc<Usage>>>,
    /// The ledgers of the namespaces: an identity's limit counts its leases in all of them.
    ledgers: Mutex<HashMap<String, Weak<Ledger>>>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self::new(QuotaSettings::default())
    }
}

/// A limit that applies to a call, and its current use.
struct Counted {
    scope: Scope,
    quota: Quota,
    usage: Arc<Usage>,
}

impl Quotas {
    /// Limits without any current use.
    pub fn new(settings: QuotaSettings) -> Self {
        Self {
            shared: Arc::new(Shared {
                began: Instant::now(),
                settings: RwLock::new(Arc::new(settings)),
                namespaces: Mutex::default(),
                identities: Mutex::default(),
                ledgers: Mutex::default(),
            }),
        }
    }

    /// Replaces the limits. The current use is kept.
    pub fn replace(&self, settings: QuotaSettings) {
        *self.shared.settings.write() = Arc::new(settings);
    }

    /// Counts a call of an identity.
    ///
    /// # Errors
    /// [`QuotaExceeded`] with the time until the rate admits a call.
    pub fn call(&self, identity: &Identity) -> Result<(), QuotaExceeded> {
        self.charge(self.of_identity(identity)?)
    }

    /// Counts a call in a namespace. Count the identity first: a call that its limit refuses must not use up the
    /// namespace's rate.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_in(&self, namespace: &str) -> Result<(), QuotaExceeded> {
        self.charge(self.of_namespace(namespace))
    }

    /// Counts more calls of an identity in a namespace, after [`Self::call`] and [`Self::call_in`] have admitted the
    /// first: a call for several locks counts as one for each. They are not refused, but later calls are.
    pub fn more_calls(&self, identity: &Identity, namespace: &str, calls: usize) {
        for counted in self.counted(identity, Some(namespace)).unwrap_or_default() {
            if let Some(rate) = counted.quota.rate {
                counted.usage.rate.spend(rate, calls, self.now());
            }
        }
    }

    fn charge(&self, counted: Option<Counted>) -> Result<(), QuotaExceeded> {
        let with_rate = counted.and_then(|counted| Some((counted.quota.rate?, counted)));
        let Some((rate, counted)) = with_rate else {
            return Ok(());
        };
        counted
            .usage
            .rate
            .charge(rate, self.now())
            .map_err(|retry| QuotaExceeded {
                limit: "rate",
                what: "calls a second",
                scope: counted.scope,
                most: rate.per_second,
                retry,
            })
    }

    /// Counts an Acquire in a namespace, whose leases are in `ledger`. A retry whose lease is already counted uses no
    /// further lease, so that it finds its own lease even at the limit.
    ///
    /// # Errors
    /// [`QuotaExceeded`]; nothing is counted then.
    pub fn acquire(
        &self,
        identity: &Identity,
        namespace: &str,
        entry: Entry,
        ledger: &Arc<Ledger>,
    ) -> Result<AcquireQuota, QuotaExceeded> {
        let counted = self.counted(identity, Some(namespace))?;
        if counted.is_empty() {
            return Ok(AcquireQuota::default());
        }
        self.note_ledger(namespace, ledger);
        ledger.forget_expired();
        let is_held = entry.claim.is_some_and(|claim| ledger.has_share(claim));
        let take_if = |wanted: bool, what| {
            if wanted {
                take(&counted, what)
            } else {
                Ok(QuotaUse::default())
            }
        };
        let held = take_if(!is_held, Resource::Leases).or_else(|_| {
            self.forget_expired();
            take_if(!is_held, Resource::Leases)
        })?;
        let waiting = take_if(entry.waits, Resource::Waiters)?;
        Ok(AcquireQuota {
            held,
            _waiting: waiting,
            ledger: Some(Arc::clone(ledger)),
            granted: None,
        })
    }

    /// Notes the ledger of a namespace, which is another one if the namespace was removed and added again.
    fn note_ledger(&self, namespace: &str, ledger: &Arc<Ledger>) {
        let mut ledgers = self.shared.ledgers.lock();
        if ledgers
            .get(namespace)
            .is_none_or(|known| known.as_ptr() != Arc::as_ptr(ledger))
        {
            ledgers.retain(|_, known| known.strong_count() > 0);
            ledgers.insert(namespace.to_owned(), Arc::downgrade(ledger));
        }
    }

    /// Gives back what expired leases use, in all namespaces with a counted Acquire.
    fn forget_expired(&self) {
        let ledgers: Vec<_> = self.shared.ledgers.lock().values().filter_map(Weak::upgrade).collect();
        ledgers.iter().for_each(|ledger| ledger.forget_expired());
    }

    /// Counts a watch in its namespace, or a stream that keeps leases of any namespace.
    ///
    /// # Errors
    /// [`QuotaExceeded`]; nothing is counted then.
    pub fn stream(&self, identity: &Identity, namespace: Option<&str>) -> Result<QuotaUse, QuotaExceeded> {
        take(&self.counted(identity, namespace)?, Resource::Streams)
    }

    /// The limits that apply to a call, the identity's first.
    fn counted(&self, identity: &Identity, namespace: Option<&str>) -> Result<Vec<Counted>, QuotaExceeded> {
        let of_namespace = namespace.and_then(|namespace| self.of_namespace(namespace));
        let limits = [self.of_identity(identity)?, of_namespace];
        Ok(limits.into_iter().flatten().collect())
    }

    fn of_identity(&self, identity: &Identity) -> Result<Option<Counted>, QuotaExceeded> {
        let any_matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(identity.as_str()));
        let settings = self.settings();
        let Some((_, quota)) = settings.identities.iter().find(|(patterns, _)| any_matches(patterns)) else {
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
        let mut usages = self.shared.namespaces.lock();
        let usage = usages.entry(namespace.to_owned()).or_default();
        Some(Counted {
            scope: Scope::Namespace,
            quota,
            usage: Arc::clone(usage),
        })
    }

    fn settings(&self) -> Arc<QuotaSettings> {
        let settings = self.shared.settings.read();
        Arc::clone(&settings)
    }

    fn usage_of(&self, identity: &Identity) -> Result<Arc<Usage>, QuotaExceeded> {
        let now = self.now();
        let mut usages = self.shared.identities.lock();
        if let Some(usage) = usages.get(identity) {
            return Ok(Arc::clone(usage));
        }
        if usages.len() >= MAX_IDENTITIES {
            usages.retain(|_, usage| Arc::strong_count(usage) > 1 || !usage.is_idle(now));
        }
        if usages.len() >= MAX_IDENTITIES {
            return Err(QuotaExceeded {
                limit: "identities",
                what: "identities with their own limits at once, over all callers",
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

/// Takes one unit of each limit that is set.
fn take(counted: &[Counted], what: Resource) -> Result<QuotaUse, QuotaExceeded> {
    let mut quota_use = QuotaUse::default();
    for limit_of in counted {
        let Some(most) = limit_of.quota.most(what) else {
            continue;
        };
        let units = InUse::count(&limit_of.usage, what, 1, most as usize).ok_or_else(|| {
            let (limit, what) = what.words();
            QuotaExceeded {
                limit,
                what,
                scope: limit_of.scope,
                most,
                retry: RETRY_FULL,
            }
        })?;
        quota_use.units.push(units);
    }
    Ok(quota_use)
}

#[cfg(test)]
mod tests;
