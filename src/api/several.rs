//! `AcquireAll` and `ReleaseAll`: several locks of a namespace at once, all or none.
//!
//! The locks are acquired one after the other in the order of their names, so that no two of these calls wait for each
//! other. Those that are held are renewed while the call waits for the rest, and all of them once more before the answer.
//!
//! A step of a store is about one lock, so no store can take them together. What a second call with the same
//! `request_id` has found is not given back, unless it came on a later stream of the same session, whose call gives it back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, OptionFuture, join_all};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::metadata::MetadataMap;

use super::access::{CountedGrant, GuardedNamespaces, NamespaceToAcquire};
use super::authenticate::Caller;
use super::concurrency_limit::{Permit, Permits};
use super::request_log::{CallName, logged};
use super::{convert, deadline, proto, status};
use crate::error::Error;
use crate::locks::{Acquire, SessionStream};
use crate::name::{Identity, InvalidField, LeaseKey, LockName, Mode};
use crate::rpc::path;

/// How many locks one call acquires at most, and how many leases one call releases.
const LOCKS: usize = 64;
/// How many times in its TTL a held lease is renewed while the call waits.
const RENEWALS_IN_TTL: u32 = 3;
/// When a renewal that failed is tried again.
const RENEW_AGAIN: Duration = Duration::from_millis(500);
/// How long a call that failed waits until its locks are given back; the rest continues in the background.
const GIVE_BACK_WAIT: Duration = Duration::from_millis(300);

/// An AcquireAll call.
pub(super) struct AcquireAllCall {
    namespace: NamespaceToAcquire,
    /// With the position of each in the request, in the order of the names.
    requests: Vec<(usize, Acquire)>,
    names: Vec<LockName>,
    wait: Duration,
    arrived: Instant,
    /// For the leases that are kept while the call waits.
    permits: Arc<Permits>,
}

impl AcquireAllCall {
    /// The call of a request that may proceed.
    pub(super) fn new(
        guarded: &GuardedNamespaces,
        permits: &Arc<Permits>,
        caller: Caller,
        headers: &MetadataMap,
        message: proto::AcquireAllRequest,
    ) -> Result<Self, Error> {
        let arrived = Instant::now();
        let identity = caller.identity.clone();
        let names: Vec<&str> = message.locks.iter().map(|lock| lock.name.as_str()).collect();
        let namespace = guarded.to_acquire_all(caller, &message.namespace, &names)?;
        check_number("locks", names.len(), 2)?;
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return Err(InvalidField::new("locks", "must have distinct names").into());
        }
        namespace.count_more_calls(names.len() - 1);
        let requests = requests_of(message, identity)?;
        let asked = requests.first().map_or(Duration::ZERO, |(_, request)| request.wait);
        // Checked before the deadline shortens it: the limit does not depend on the deadline.
        namespace.limits().wait(asked)?;
        Ok(Self {
            namespace,
            names: requests.iter().map(|(_, request)| request.lock.clone()).collect(),
            requests,
            wait: deadline::shortened(asked, headers),
            arrived,
            permits: Arc::clone(permits),
        })
    }

    /// The same call on this stream of a session, if it can be resumed.
    pub(super) fn on(mut self, stream: Option<Arc<SessionStream>>) -> Self {
        self.namespace = self.namespace.on(stream);
        self
    }

    /// The same call, which arrived at this time: its wait counts from then.
    pub(super) fn arrived_at(mut self, arrived: Instant) -> Self {
        self.arrived = arrived;
        self
    }

    /// Acquires all locks, and returns their grants in the order of the request.
    ///
    /// # Cancellation safety
    /// When dropped at any moment, all locks are given back, except holds that a retry has found. If its stream broke off, they
    /// are kept for the grace of its session, without renewal.
    ///
    /// # Errors
    /// [`Error::OfLock`] with the lock that was not acquired or kept. The others were given back.
    pub(super) async fn run(self) -> Result<Vec<CountedGrant>, Error> {
        let mut held = HeldLocks::default();
        let denied = self.namespace.until_denied(&self.names);
        let acquired = {
            let acquire = std::pin::pin!(self.acquire(&mut held));
            tokio::select! {
                biased;
                acquired = acquire => acquired,
                // A rule may be gone for a lock that is held already.
                error = denied => {
                    // Its stream is noted to have broken off before what it does is dropped.
                    self.namespace.is_kept_after(&error);
                    Err(error)
                }
            }
        };
        match acquired {
            Ok(()) => Ok(held.in_order()),
            Err(error) if self.namespace.is_kept_after(&error) => Err(error),
            Err(error) => {
                held.give_back().await;
                Err(error)
            }
        }
    }

    async fn acquire(&self, held: &mut HeldLocks) -> Result<(), Error> {
        for (at, request) in &self.requests {
            let of_lock = |error: Error| error.of_lock(request.lock.clone());
            let caller = self.namespace.caller();
            // Dropped when the lock is held.
            let wait = (!self.wait.is_zero()).then(|| self.permits.wait_to_keep(caller));
            let _wait = wait.transpose().map_err(of_lock)?;
            let permit = self.permits.keep(1, caller).map_err(of_lock)?;
            let granted = held.while_kept(self.acquire_one(request.clone())).await?;
            held.add(*at, granted.map_err(of_lock)?, permit);
        }
        self.namespace.still_allowed(&self.names).await?;
        held.confirm(self.arrived).await
    }

    /// Acquires one lock within what is left of the wait.
    async fn acquire_one(&self, request: Acquire) -> Result<CountedGrant, Error> {
        let namespace = self.namespace.clone();
        if self.wait.is_zero() {
            let wait = Duration::ZERO;
            return namespace.try_acquire(Acquire { wait, ..request })?.await;
        }
        let timed_out = || Error::WaitTimeout {
            waited: self.arrived.elapsed(),
        };
        let wait = self.wait.saturating_sub(self.arrived.elapsed());
        if wait.is_zero() {
            return Err(timed_out());
        }
        match namespace.wait_for(Acquire { wait, ..request })?.await {
            Err(Error::WaitTimeout { .. }) => Err(timed_out()),
            outcome => outcome,
        }
    }
}

/// The request for each lock with its position in the message, in the order of the names. They share the metadata.
fn requests_of(message: proto::AcquireAllRequest, identity: Identity) -> Result<Vec<(usize, Acquire)>, Error> {
    let locks = message.locks.into_iter().enumerate();
    let locks: Vec<(LockName, Mode)> = locks.map(|(at, lock)| lock_of(at, lock)).collect::<Result<_, _>>()?;
    let common = proto::AcquireRequest {
        namespace: message.namespace,
        name: locks
            .first()
            .map(|(name, _)| name.as_str().to_owned())
            .unwrap_or_default(),
        mode: None,
        owner: message.owner,
        ttl: message.ttl,
        wait: message.wait,
        request_id: message.request_id,
        metadata: message.metadata,
        reentrant: false,
    };
    let common = convert::acquire(common, identity)?;
    let request = |(lock, mode)| Acquire {
        lock,
        mode,
        ..common.clone()
    };
    let mut requests: Vec<_> = locks.into_iter().map(request).enumerate().collect();
    requests.sort_by(|(_, one), (_, other)| one.lock.as_str().cmp(other.lock.as_str()));
    Ok(requests)
}

/// The name and the mode of the lock at this position.
fn lock_of(at: usize, lock: proto::LockToAcquire) -> Result<(LockName, Mode), Error> {
    let in_lock = |InvalidField { field, problem }| InvalidField::new(field, format!("of locks[{at}]: {problem}"));
    let name = LockName::new(&lock.name).map_err(in_lock)?;
    let mode = lock.mode.map_or(Ok(Mode::Exclusive), convert::mode).map_err(in_lock);
    match mode {
        Ok(mode) => Ok((name, mode)),
        Err(invalid) => Err(Error::from(invalid).of_lock(name)),
    }
}

/// The locks that a call holds already, with the position of each in its request.
#[derive(Default)]
struct HeldLocks {
    grants: Vec<(usize, CountedGrant)>,
    /// For as many kept leases.
    permits: Vec<Permit>,
    /// When they are due to be renewed.
    renew_at: Option<Instant>,
}

impl HeldLocks {
    fn add(&mut self, at: usize, grant: CountedGrant, permit: Permit) {
        let due = Instant::now() + grant.lease().ttl / RENEWALS_IN_TTL;
        self.renew_at = Some(self.renew_at.map_or(due, |at| at.min(due)));
        self.grants.push((at, grant));
        self.permits.push(permit);
    }

    fn in_order(mut self) -> Vec<CountedGrant> {
        self.grants.sort_by_key(|(at, _)| *at);
        self.grants.into_iter().map(|(_, grant)| grant).collect()
    }

    /// Awaits something and keeps the held leases meanwhile. An error is that of a lease that was lost.
    async fn while_kept<T>(&mut self, step: impl Future<Output = T>) -> Result<T, Error> {
        tokio::pin!(step);
        loop {
            let is_due = OptionFuture::from(self.renew_at.map(sleep_until));
            tokio::select! {
                biased;
                done = &mut step => return Ok(done),
                Some(()) = is_due => {}
            }
            // The step goes on while the leases are renewed.
            tokio::select! {
                biased;
                done = &mut step => return Ok(done),
                renewed = self.renew() => renewed?,
            }
        }
    }

    /// Renews all, and sets when that is due again. Only the loss of a lease is an error.
    async fn renew(&mut self) -> Result<(), Error> {
        let (mut next, sent) = (None, Instant::now());
        let outcomes = self.renewals().await;
        for ((_, grant), outcome) in self.grants.iter_mut().zip(outcomes) {
            let pause = match outcome {
                Ok(ttl) => {
                    grant.lives(sent, ttl);
                    ttl / RENEWALS_IN_TTL
                }
                Err(error) if error.is_transient() => RENEW_AGAIN,
                Err(error) => return Err(error),
            };
            let due = Instant::now() + pause;
            next = Some(next.map_or(due, |next: Instant| next.min(due)));
        }
        self.renew_at = next;
        Ok(())
    }

    async fn renewals(&self) -> Vec<Result<Duration, Error>> {
        // Boxed, because the compiler cannot prove that a borrowing future per grant is `Send`.
        let mut renewals: Vec<BoxFuture<'_, _>> = Vec::with_capacity(self.grants.len());
        for (_, grant) in &self.grants {
            renewals.push(grant.renewed().boxed());
        }
        join_all(renewals).await
    }

    /// Renews all once more, so that each lives for its TTL from a moment that they share.
    async fn confirm(&mut self, arrived: Instant) -> Result<(), Error> {
        let (waited, sent) = (arrived.elapsed(), Instant::now());
        let ttls = self.renewals().await;
        for ((_, grant), ttl) in self.grants.iter_mut().zip(ttls) {
            let ttl = ttl?;
            grant.lives(sent, ttl);
            grant.set_time(ttl, waited);
        }
        Ok(())
    }

    /// Gives all back. What takes longer continues in the background.
    async fn give_back(self) {
        let all = self.grants.into_iter().map(|(_, grant)| grant.give_back());
        let all = tokio::spawn(join_all(all.collect::<Vec<_>>()));
        // What was not given back is undone in the background.
        let _ = timeout(GIVE_BACK_WAIT, all).await;
    }
}

/// Releases leases that the caller may use, all at the same time. Each has its own result, so that `call` names this
/// call in the log of an internal error.
///
/// # Errors
/// When the caller may use no namespace, or the number of leases is out of bounds.
pub(super) async fn release_all(
    guarded: &GuardedNamespaces,
    caller: &Caller,
    call: Option<&CallName>,
    lease_ids: Vec<String>,
) -> Result<Vec<proto::ReleaseResult>, Error> {
    guarded.to_release(caller)?;
    check_number("lease_ids", lease_ids.len(), 1)?;
    let mut releases: Vec<BoxFuture<'_, _>> = Vec::with_capacity(lease_ids.len());
    for lease_id in &lease_ids {
        releases.push(release(guarded, caller, lease_id).boxed());
    }
    let released = join_all(releases).await;
    Ok(released.into_iter().map(|released| result(released, call)).collect())
}

async fn release(guarded: &GuardedNamespaces, caller: &Caller, lease_id: &str) -> Result<(), Error> {
    let key = LeaseKey::parse(lease_id)?;
    guarded.lease(caller, &key)?.release(&key).await
}

fn result(released: Result<(), Error>, call: Option<&CallName>) -> proto::ReleaseResult {
    let Err(error) = released else {
        return proto::ReleaseResult::default();
    };
    let (reason, cause) = status::reason_and_cause(&error);
    logged(error, call, path::RELEASE_ALL);
    proto::ReleaseResult { reason, cause }
}

fn check_number(field: &'static str, number: usize, least: usize) -> Result<(), InvalidField> {
    if (least..=LOCKS).contains(&number) {
        return Ok(());
    }
    Err(InvalidField::new(
        field,
        format!("must be {least} to {LOCKS}, not {number}"),
    ))
}

#[cfg(test)]
mod tests;
