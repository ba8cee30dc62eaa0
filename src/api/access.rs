//! The only path from a method to locks: it checks the caller against the policy and the limits
//! first, so that no method can omit the check.
//!
//! A denial is returned before anything is looked up, so it reveals nothing about what exists.

use std::time::Duration;

use tokio::time::sleep;

use super::authenticate::Caller;
use super::open_streams::OpenStreams;
use super::verifications::unauthenticated;
use crate::auth::rules::LockScope;
use crate::auth::{Auth, AuthenticationFailure, Denied, Missing, Verb};
use crate::backoff::jitter;
use crate::error::Error;
use crate::locks::Locks;
use crate::name::{LeaseKey, LockName, Namespace};
use crate::namespaces::Namespaces;
use crate::quota::{QuotaExceeded, Quotas};

mod acquiring;
mod pages;
mod streams;
mod watch_permission;

pub(super) use self::acquiring::NamespaceToAcquire;
pub(super) use self::watch_permission::WatchPermission;
pub(super) use super::counted_grant::CountedGrant;

/// How often a caller's permission is checked again, because its credentials may have expired.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The longest delay of the check after a change of the policy. The checks are spread over half of it, because thousands
/// of calls may wait. With the second between two looks at the files, a revoked caller is noticed within 2 s.
const CHANGE_DELAY: Duration = Duration::from_millis(500);

/// Who may do what on a server, and how much. Clones share it, and its parts can be replaced while
/// the server runs.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The identities and their permissions.
    pub auth: Auth,
    /// The limits of each identity.
    pub quotas: Quotas,
}

/// The namespaces, behind the policy and the limits.
#[derive(Debug, Clone)]
pub(super) struct GuardedNamespaces {
    namespaces: Namespaces,
    quotas: Quotas,
    streams: OpenStreams,
}

impl GuardedNamespaces {
    /// These namespaces, with these limits for each caller.
    pub(super) fn new(namespaces: Namespaces, quotas: Quotas) -> Self {
        Self {
            namespaces,
            quotas,
            streams: OpenStreams::default(),
        }
    }

    /// Checks that an Acquire may proceed, and returns the namespace for it.
    pub(super) fn to_acquire(&self, caller: Caller, namespace: &str, name: &str) -> Result<NamespaceToAcquire, Error> {
        Ok(NamespaceToAcquire {
            locks: self.allowed(&caller, Verb::Acquire, namespace, LockScope::Names(name))?,
            guarded: self.clone(),
            caller,
            control: None,
            stream: None,
        })
    }

    /// [`Self::to_acquire`] of several locks. The first counts against the call rates, and
    /// [`NamespaceToAcquire::count_more_calls`] counts the others.
    pub(super) fn to_acquire_all(
        &self,
        caller: Caller,
        namespace: &str,
        names: &[&str],
    ) -> Result<NamespaceToAcquire, Error> {
        let first = names.first().copied().unwrap_or_default();
        let allowed = self.to_acquire(caller, namespace, first);
        let allowed = allowed.map_err(|error| denied_of(first, error))?;
        for name in names {
            let checked = self.check(&allowed.caller, Verb::Acquire, namespace, LockScope::Names(name));
            checked.map_err(|error| denied_of(name, error))?;
        }
        Ok(allowed)
    }

    /// Checks that a caller may release leases of some namespace. Each lease is checked by [`Self::lease`].
    pub(super) fn to_release(&self, caller: &Caller) -> Result<(), Error> {
        self.opened(caller).map(drop)
    }

    /// Checks that the caller may use the lease, and returns its namespace. The lease id proves
    /// that the lease is the caller's; the policy is checked nevertheless. Renew and Release do not
    /// count against a limit.
    pub(super) fn lease(&self, caller: &Caller, lease: &LeaseKey) -> Result<Locks, Error> {
        let (namespace, name) = (lease.lock.namespace.as_str(), lease.lock.name.as_str());
        self.check(caller, Verb::Acquire, namespace, LockScope::Names(name))?;
        self.namespaces.get(namespace)
    }

    /// Checks that the caller may use the lease, and returns its namespace, for a call that counts against the limits.
    pub(super) fn lease_to_update(&self, caller: &Caller, lease: &LeaseKey) -> Result<Locks, Error> {
        let (namespace, name) = (lease.lock.namespace.as_str(), lease.lock.name.as_str());
        self.allowed(caller, Verb::Acquire, namespace, LockScope::Names(name))
    }

    /// The locks of a namespace, to read one of them, or to list those with a prefix. A caller that may read only some
    /// names must request a prefix that covers only those.
    pub(super) fn to_read(&self, caller: &Caller, namespace: &str, name: &str) -> Result<Locks, Error> {
        self.allowed(caller, Verb::Read, namespace, LockScope::Names(name))
    }

    /// The locks of a namespace, to watch one of them, and the permission for it.
    pub(super) fn to_watch(
        &self,
        caller: Caller,
        namespace: &str,
        name: &str,
    ) -> Result<(Locks, WatchPermission), Error> {
        let locks = self.to_read(&caller, namespace, name)?;
        let quota = self.quotas.stream(&caller.identity, Some(namespace));
        let permission = WatchPermission {
            _quota: quota.map_err(|over| self.counted(locks.namespace(), over))?,
            guarded: self.clone(),
            caller,
            namespace: locks.namespace().clone(),
        };
        Ok((locks, permission))
    }

    /// The caller under the current policy, for the next step of a stream.
    pub(super) async fn current(caller: &Caller) -> Result<Caller, Error> {
        if caller.policy.is_none() {
            return Ok(caller.clone());
        }
        let current = caller.reauthenticate().await.map_err(unauthenticated)?;
        // A call of one identity does not continue under another identity.
        if current.identity == caller.identity {
            Ok(current)
        } else {
            Err(unauthenticated(AuthenticationFailure::Invalid))
        }
    }

    /// Ready when the caller is to be checked again: after a change of the policy, and at intervals.
    async fn recheck_due(caller: &Caller) {
        if caller.policy.is_none() {
            return std::future::pending().await;
        }
        let changed = async {
            caller.until_policy_is_replaced().await;
            sleep(jitter(CHANGE_DELAY)).await;
        };
        tokio::select! {
            () = sleep(RECHECK_INTERVAL) => {}
            () = changed => {}
        }
    }

    /// Ready when the credentials of a stream's caller have expired or are not accepted any more.
    pub(super) async fn until_unauthenticated(mut caller: Caller) -> Error {
        loop {
            Self::recheck_due(&caller).await;
            match Self::current(&caller).await {
                Ok(current) => caller = current,
                Err(error) => return error,
            }
        }
    }

    /// Ready when the caller may not continue what it does with one of these locks: a rule was removed, or its
    /// credentials have expired or are not accepted any more.
    async fn until_denied(&self, caller: &Caller, verb: Verb, namespace: &Namespace, names: &[LockName]) -> Error {
        let mut caller = caller.clone();
        loop {
            Self::recheck_due(&caller).await;
            match self.still_allowed(&caller, verb, namespace, names).await {
                Ok(current) => caller = current,
                Err(error) => return error,
            }
        }
    }

    /// The caller under the current policy, if it still has its identity and its permission for these locks.
    async fn still_allowed(
        &self,
        caller: &Caller,
        verb: Verb,
        namespace: &Namespace,
        names: &[LockName],
    ) -> Result<Caller, Error> {
        let current = Self::current(caller).await?;
        for name in names.iter().map(LockName::as_str) {
            let checked = self.check(&current, verb, namespace.as_str(), LockScope::Names(name));
            checked.map_err(|error| match names.len() {
                1 => error,
                _ => denied_of(name, error),
            })?;
        }
        Ok(current)
    }

    /// The locks of a namespace, to force the release of one of them.
    pub(super) fn to_force(&self, caller: &Caller, namespace: &str, name: &str) -> Result<Locks, Error> {
        self.allowed(caller, Verb::Admin, namespace, LockScope::Names(name))
    }

    /// The locks of a namespace, for an operation on all of them.
    pub(super) fn to_admit(&self, caller: &Caller, namespace: &str) -> Result<Locks, Error> {
        self.allowed(caller, Verb::Admin, namespace, LockScope::All)
    }

    /// All namespaces in which the caller has any permission.
    pub(super) fn all(&self, caller: &Caller) -> Result<Vec<Locks>, Error> {
        self.quotas.call(&caller.identity)?;
        self.opened(caller)
    }

    /// [`Self::all`], for a call that no limit refuses.
    fn opened(&self, caller: &Caller) -> Result<Vec<Locks>, Error> {
        caller.note_subject(None, None);
        let mut all = self.namespaces.all();
        all.retain(|locks| {
            let name = locks.namespace().as_str();
            let policy = caller.policy.as_ref();
            policy.is_none_or(|policy| policy.opens(&caller.identity, name))
        });
        if all.is_empty() && caller.policy.is_some() {
            return Err(Error::PermissionDenied(Box::new(Denied {
                identity: caller.identity.clone(),
                verb: None,
                namespace: None,
                missing: Missing::Namespace,
            })));
        }
        Ok(all)
    }

    /// Checks the limits and the policy. A namespace's call rate does not apply to operators,
    /// because it may be the reason for their call.
    fn allowed(&self, caller: &Caller, verb: Verb, namespace: &str, locks: LockScope<'_>) -> Result<Locks, Error> {
        caller.note_subject(Some(namespace), named(&locks));
        self.namespaces.count_for(namespace);
        // Checked before the policy: denied calls count against the rate too.
        if let Err(over) = self.quotas.call(&caller.identity) {
            return Err(match self.namespaces.get(namespace) {
                Ok(found) => self.counted(found.namespace(), over).into(),
                Err(_) => over.into(),
            });
        }
        self.check(caller, verb, namespace, locks)?;
        let found = self.namespaces.get(namespace)?;
        if verb != Verb::Admin {
            let called = self.quotas.call_in(namespace);
            called.map_err(|over| self.counted(found.namespace(), over))?;
        }
        Ok(found)
    }

    fn check(&self, caller: &Caller, verb: Verb, namespace: &str, locks: LockScope<'_>) -> Result<(), Error> {
        caller.note_subject(Some(namespace), named(&locks));
        let Some(policy) = &caller.policy else { return Ok(()) };
        // An invalid name is reported as such: no rule can allow it.
        Namespace::new(namespace)?;
        self.namespaces.count_for(namespace);
        policy
            .check(&caller.identity, verb, namespace, locks)
            .map_err(|denied| Error::PermissionDenied(Box::new(denied)))
    }

    fn counted(&self, namespace: &Namespace, over: QuotaExceeded) -> QuotaExceeded {
        if let Some(metrics) = self.namespaces.metrics() {
            metrics.quota_refusal(namespace, over.scope.as_str(), over.limit);
        }
        over
    }
}

/// The lock, or the prefix of locks.
fn named<'a>(locks: &LockScope<'a>) -> Option<&'a str> {
    match locks {
        LockScope::Names(name) => Some(name),
        LockScope::All => None,
    }
}

/// A denial with the lock of several that it is about.
fn denied_of(name: &str, error: Error) -> Error {
    match (LockName::new(name), &error) {
        (Ok(name), Error::PermissionDenied(_)) => error.of_lock(name),
        _ => error,
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests;
