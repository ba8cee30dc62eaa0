//! The only way from a method to locks: who asks is checked against the policy and its limits first,
//! so that no method can forget it.
//!
//! What a caller may not do it is told before anything is looked up: a denial says nothing of what
//! there is.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::authenticate::Caller;
use super::connection::Peer;
use super::grant_delivery::Deliver;
use super::verifications::unproven;
use crate::auth::rules::Reach;
use crate::auth::{Auth, Denied, Missing, Unproven, Verb};
use crate::backend::BackendError;
use crate::error::Error;
use crate::limits::Limits;
use crate::locks::{Acquire, Granted, Lease, Locks};
use crate::name::{FencingToken, LeaseKey, LockName, Namespace};
use crate::namespaces::Namespaces;
use crate::quota::{Entry, OverLimit, AcquireQuota, Quotas, QuotaUse};
use crate::telemetry::traces::carried;

/// How often it is looked whether a watch may go on.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Who may do what on a server, and how much of it. Clones share it, and its parts can be swapped while
/// the server runs.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Who is who, and what each may do.
    pub auth: Auth,
    /// How much each may do.
    pub quotas: Quotas,
}

/// The namespaces, behind the policy and the limits.
#[derive(Debug, Clone)]
pub(super) struct GuardedNamespaces {
    namespaces: Namespaces,
    quotas: Quotas,
}

/// A lease that was granted, with its place among those that count.
#[derive(Debug)]
pub(super) struct CountedGrant {
    granted: Granted,
    place: AcquireQuota,
}

impl CountedGrant {
    /// The lease.
    pub(super) fn lease(&self) -> &Lease {
        &self.granted.lease
    }
}

impl Deliver for CountedGrant {
    fn deliver(self) {
        let lease = self.granted.delivered();
        self.place.holds(&lease.key, lease.ttl);
    }
}

impl GuardedNamespaces {
    /// These namespaces, each caller held to these limits.
    pub(super) fn new(namespaces: Namespaces, quotas: Quotas) -> Self {
        Self { namespaces, quotas }
    }

    /// Where an Acquire may go on: the limits of the namespace that was asked for.
    pub(super) fn to_acquire(&self, caller: Caller, namespace: &str, name: &str) -> Result<NamespaceToAcquire, Error> {
        Ok(NamespaceToAcquire {
            locks: self.allowed(&caller, Verb::Acquire, namespace, Reach::Names(name))?,
            guarded: self.clone(),
            caller,
        })
    }

    /// The locks in which a lease is. Its id is the proof that it is the caller's; what the caller may
    /// do at all is checked all the same. Neither a Renew nor a Release counts against a limit.
    pub(super) fn lease(&self, caller: &Caller, lease: &LeaseKey) -> Result<HeldLease, Error> {
        let namespace = lease.lock.namespace.as_str();
        self.check(caller, Verb::Acquire, namespace, Reach::Names(lease.lock.name.as_str()))?;
        Ok(HeldLease {
            locks: self.namespaces.get(namespace)?,
            quotas: self.quotas.clone(),
        })
    }

    /// The locks of a namespace, to look at one of them.
    pub(super) fn to_read(&self, caller: &Caller, namespace: &str, name: &str) -> Result<Locks, Error> {
        self.allowed(caller, Verb::Read, namespace, Reach::Names(name))
    }

    /// The same to list those whose names begin so. Whoever may look at some must ask for those.
    pub(super) fn to_list(&self, caller: &Caller, namespace: &str, prefix: &str) -> Result<Locks, Error> {
        self.to_read(caller, namespace, prefix)
    }

    /// The same to watch one, with its place among the streams.
    pub(super) fn to_watch(&self, caller: &Caller, namespace: &str, name: &str) -> Result<(Locks, QuotaUse), Error> {
        let locks = self.to_read(caller, namespace, name)?;
        let taken = self.quotas.stream(&caller.identity, namespace);
        let taken = taken.map_err(|over| self.counted(locks.namespace(), over))?;
        Ok((locks, taken))
    }

    /// Ready when the caller of a watch may look no more: a rule is gone, its proof has expired, or is not
    /// accepted any more.
    pub(super) async fn until_denied(self, caller: Caller, namespace: String, name: String) -> Error {
        self.until_not_allowed(&caller, Verb::Read, &namespace, &name).await
    }

    /// Ready when the caller may not go on with what it does to a lock. It is looked at every
    /// [`LOOK_AGAIN`].
    async fn until_not_allowed(&self, caller: &Caller, verb: Verb, namespace: &str, name: &str) -> Error {
        if caller.policy.is_none() {
            return std::future::pending().await;
        }
        loop {
            sleep(LOOK_AGAIN).await;
            if let Err(error) = self.still_allowed(caller, verb, namespace, name).await {
                return error;
            }
        }
    }

    /// Whether the caller is still who it was, and may still do something to a lock.
    async fn still_allowed(&self, caller: &Caller, verb: Verb, namespace: &str, name: &str) -> Result<(), Error> {
        if caller.policy.is_none() {
            return Ok(());
        }
        let again = caller.again_in_turn().await.map_err(unproven)?;
        self.check(&again, verb, namespace, Reach::Names(name))?;
        // What was done under the one name is not the other's.
        if again.identity == caller.identity {
            Ok(())
        } else {
            Err(unproven(Unproven::Invalid))
        }
    }

    /// The locks of a namespace, to take one of them away.
    pub(super) fn to_force(&self, caller: &Caller, namespace: &str, name: &str) -> Result<HeldLease, Error> {
        Ok(HeldLease {
            locks: self.allowed(caller, Verb::Admin, namespace, Reach::Names(name))?,
            quotas: self.quotas.clone(),
        })
    }

    /// The locks of a namespace, to do something to all of them.
    pub(super) fn to_admit(&self, caller: &Caller, namespace: &str) -> Result<Locks, Error> {
        self.allowed(caller, Verb::Admin, namespace, Reach::All)
    }

    /// All namespaces in which the caller may do anything.
    pub(super) fn all(&self, caller: &Caller) -> Result<Vec<Locks>, Error> {
        let mut all = self.namespaces.all();
        all.retain(|locks| {
            let name = locks.namespace().as_str();
            let policy = caller.policy.as_ref();
            policy.is_none_or(|policy| policy.opens(&caller.identity, name))
        });
        self.quotas.call(&caller.identity)?;
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

    /// What an operator does is not held up by the limit of a namespace, which may be why it is done.
    fn allowed(&self, caller: &Caller, verb: Verb, namespace: &str, locks: Reach<'_>) -> Result<Locks, Error> {
        self.namespaces.concern(namespace);
        // Before it is denied: to be denied all the time is no way around a rate.
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

    fn check(&self, caller: &Caller, verb: Verb, namespace: &str, locks: Reach<'_>) -> Result<(), Error> {
        let Some(policy) = &caller.policy else { return Ok(()) };
        // A bad spelling is that and no more: there is nothing of the kind to be allowed.
        Namespace::new(namespace)?;
        self.namespaces.concern(namespace);
        policy
            .check(&caller.identity, verb, namespace, locks)
            .map_err(|denied| Error::PermissionDenied(Box::new(denied)))
    }

    fn counted(&self, namespace: &Namespace, over: OverLimit) -> OverLimit {
        if let Some(metrics) = self.namespaces.metrics() {
            metrics.over_limit(namespace, over.scope.word(), over.limit);
        }
        over
    }
}

/// A namespace that an Acquire may enter.
#[derive(Debug)]
pub(super) struct NamespaceToAcquire {
    locks: Locks,
    guarded: GuardedNamespaces,
    caller: Caller,
}

impl NamespaceToAcquire {
    /// What the namespace accepts.
    pub(super) fn limits(&self) -> Arc<Limits> {
        self.locks.limits()
    }

    /// Takes the lock. A caller that waits is looked at again now and then, and before its grant is answered:
    /// if it may not have the lock any more, it leaves the queue or its grant is taken back.
    ///
    /// # Cancellation safety
    /// As [`Locks::acquire`].
    pub(super) async fn acquire(self, ask: Acquire) -> Result<CountedGrant, Error> {
        let entry = Entry {
            waits: !ask.wait.is_zero(),
            claim: ask.claim(),
        };
        let namespace = self.locks.namespace();
        let place = self.guarded.quotas.acquire(&ask.identity, namespace.as_str(), entry);
        let place = place.map_err(|over| self.guarded.counted(namespace, over))?;
        let granted = if ask.wait.is_zero() {
            self.locks.acquire(ask).await?
        } else {
            Box::pin(self.wait(ask)).await?
        };
        Ok(CountedGrant { granted, place })
    }

    async fn wait(&self, ask: Acquire) -> Result<Granted, Error> {
        let (namespace, name) = (self.locks.namespace().as_str(), ask.lock.clone());
        let Self { guarded, caller, .. } = self;
        let denied = guarded.until_not_allowed(caller, Verb::Acquire, namespace, name.as_str());
        let granted = tokio::select! {
            biased;
            granted = self.locks.acquire(ask) => granted?,
            // Dropped, the wait leaves its queue.
            error = denied => return Err(error),
        };
        let allowed = guarded.still_allowed(caller, Verb::Acquire, namespace, name.as_str());
        allowed.await.map(|()| granted)
    }
}

/// The namespace of a lease that may end here, and must count no more then.
#[derive(Debug)]
pub(super) struct HeldLease {
    locks: Locks,
    quotas: Quotas,
}

impl HeldLease {
    /// Gives the lease more time.
    pub(super) async fn renew(&self, key: &LeaseKey, ttl: Option<Duration>) -> Result<Lease, Error> {
        let renewed = self.locks.renew(key, ttl).await;
        match &renewed {
            Ok(lease) => self.quotas.renewed(key, lease.ttl),
            Err(Error::LeaseLost { .. }) => self.quotas.ended(key),
            Err(_) => {}
        }
        renewed
    }

    /// Gives the lease back.
    pub(super) async fn release(&self, key: &LeaseKey) -> Result<(), Error> {
        let released = self.locks.release(key).await;
        if matches!(released, Ok(()) | Err(Error::LeaseLost { .. })) {
            self.quotas.ended(key);
        }
        released
    }

    /// Takes a lock away from the claim that a token names.
    ///
    /// # Cancellation safety
    /// Dropped, it goes on by itself: what the store takes away counts no more, whoever hears of it.
    pub(super) async fn force(self, name: LockName, token: FencingToken) -> Result<(), Error> {
        let act = async move {
            self.locks.force_release(&name, token).await?;
            self.quotas.forced(self.locks.namespace().as_str(), &name, token);
            Ok(())
        };
        let ended = tokio::spawn(carried(act)).await;
        ended.unwrap_or_else(|error| {
            let reason = error.to_string();
            Err(BackendError::Broken { reason }.into())
        })
    }
}

impl Caller {
    /// Where it is, for the audit.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.peer.as_ref().map(|remote| remote.peer)
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests;
