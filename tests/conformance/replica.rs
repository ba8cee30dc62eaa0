//! A replica's verbs on one lock, in the words of the cases.

use std::time::Duration;

use fencepost::backend::{
    AcquireOutcome, Backend, Grant, InspectLimit, NewClaim, QueuePosition, Refusal, ReleaseOutcome, ReleaseTarget,
    Released, RenewOutcome, StreamNumber, UpdateOutcome,
};
use fencepost::claim::{Holder, Queue, Waiter};
use fencepost::name::{FencingToken, LeaseKey, LockKey, LockName};

use crate::claims::{note_of, ttl};
use crate::fixture::{lock, namespace};

/// The lock of a case that names no other.
const LOCK: &str = "lock";
/// How many claims a look shows.
const MANY: InspectLimit = InspectLimit {
    holders: 1_000,
    waiters: 1_000,
};

/// A claim that holds, and how its client knows it.
#[derive(Debug, Clone)]
pub struct Held {
    /// As it was brought.
    pub claim: NewClaim,
    /// As it was granted.
    pub grant: Grant,
    /// What its lease id says.
    pub lease: LeaseKey,
}

impl Held {
    /// Its token.
    pub fn token(&self) -> FencingToken {
        self.grant.token
    }
}

/// One lock at one replica.
#[derive(Debug, Clone)]
pub struct Replica<'a> {
    backend: &'a dyn Backend,
    key: LockKey,
}

impl<'a> Replica<'a> {
    /// The lock of a case, in this backend of this namespace.
    pub fn new(backend: &'a dyn Backend, name: &str) -> Self {
        let key = LockKey {
            namespace: namespace(name),
            name: lock(LOCK),
        };
        Self { backend, key }
    }

    /// Another lock at the same replica.
    pub fn on(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.key.name = lock(name);
        other
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.key.name
    }

    /// Acquires with a claim.
    pub async fn acquire(&self, claim: &NewClaim) -> AcquireOutcome {
        self.backend
            .acquire(self.name(), claim)
            .await
            .expect("the store answers")
    }

    /// Acquires with a claim that must be held at once.
    pub async fn hold(&self, claim: NewClaim) -> Held {
        let grant = held(self.acquire(&claim).await);
        self.known(claim, grant)
    }

    /// Acquires with a claim that must wait.
    pub async fn queue(&self, claim: NewClaim) -> NewClaim {
        waiting(self.acquire(&claim).await);
        claim
    }

    /// Asks for a waiting claim.
    pub async fn promote(&self, claim: &NewClaim) -> AcquireOutcome {
        self.backend
            .promote(self.name(), claim)
            .await
            .expect("the store answers")
    }

    /// Promotes a claim that must be eligible.
    pub async fn take(&self, claim: &NewClaim) -> Held {
        let grant = held(self.promote(claim).await);
        self.known(claim.clone(), grant)
    }

    /// How the client of a grant knows it.
    pub fn known(&self, claim: NewClaim, grant: Grant) -> Held {
        let lease = grant.lease(self.key.clone());
        Held { claim, grant, lease }
    }

    /// Leaves, and hands over to `next`.
    pub async fn end(&self, who: ReleaseTarget<'_>, next: Option<&NewClaim>) -> ReleaseOutcome {
        self.backend
            .release(self.name(), who, next)
            .await
            .expect("the store answers")
    }

    /// Releases a lease.
    pub async fn release(&self, held: &Held) -> Released {
        self.end(ReleaseTarget::Hold(&held.lease), None).await.released
    }

    /// Releases a lease and hands over to `next`.
    pub async fn release_to(&self, held: &Held, next: &NewClaim) -> ReleaseOutcome {
        self.end(ReleaseTarget::Hold(&held.lease), Some(next)).await
    }

    /// Undoes what a call acquired.
    pub async fn undo(&self, claim: &NewClaim) -> Released {
        self.end(ReleaseTarget::Call(&claim.id, claim.call), None)
            .await
            .released
    }

    /// Takes out what a request has, by a command of this stream.
    pub async fn cancel(&self, claim: &NewClaim, stream: StreamNumber) -> Released {
        self.end(ReleaseTarget::Request(&claim.id, stream), None).await.released
    }

    /// Whether a call may still undo something.
    pub async fn owns(&self, claim: &NewClaim) -> bool {
        let owns = self.backend.owns(self.name(), &claim.id, claim.call).await;
        owns.expect("the store answers")
    }

    /// Removes whoever holds a token.
    pub async fn force(&self, token: FencingToken) -> Released {
        self.end(ReleaseTarget::Forced(token), None).await.released
    }

    /// Renews a lease, or tries to.
    pub async fn renew(&self, held: &Held, time: Option<Duration>) -> RenewOutcome {
        self.backend
            .renew(&held.lease, time.map(ttl))
            .await
            .expect("the store answers")
    }

    /// Renews a lease that must live.
    pub async fn renewed(&self, held: &Held, time: Option<Duration>) -> Grant {
        match self.renew(held, time).await {
            RenewOutcome::Renewed(grant) => grant,
            gone => panic!("not renewed: {gone:?}"),
        }
    }

    /// Replaces the metadata of a lease, or tries to.
    pub async fn update(&self, held: &Held, note: &str) -> UpdateOutcome {
        self.update_on(None, held, note).await
    }

    /// Replaces the metadata of a lease by a command of this stream, or tries to.
    pub async fn update_on(&self, stream: Option<StreamNumber>, held: &Held, note: &str) -> UpdateOutcome {
        self.backend
            .update_metadata(&held.lease, &note_of(note), stream)
            .await
            .expect("the store answers")
    }

    /// The queue as it is.
    pub async fn inspect(&self) -> Queue {
        self.backend
            .inspect(self.name(), MANY)
            .await
            .expect("the store answers")
    }

    /// Who holds.
    pub async fn holders(&self) -> Vec<Holder> {
        self.inspect().await.holders
    }

    /// Who waits.
    pub async fn waiters(&self) -> Vec<Waiter> {
        self.inspect().await.waiters
    }

    /// The tokens that are held.
    pub async fn tokens(&self) -> Vec<FencingToken> {
        self.holders().await.iter().map(|holder| holder.token).collect()
    }

    /// Who holds and who waits, by owner.
    pub async fn owners(&self) -> (Vec<String>, Vec<String>) {
        let queue = self.inspect().await;
        let holders = queue.holders.iter().map(|holder| holder.owner.to_string());
        let waiters = queue.waiters.iter().map(|waiter| waiter.owner.to_string());
        (holders.collect(), waiters.collect())
    }

    /// Whether nobody holds and nobody waits.
    pub async fn is_free(&self) -> bool {
        self.inspect().await == Queue::default()
    }
}

/// The grant of a claim that must hold.
#[track_caller]
pub fn held(place: AcquireOutcome) -> Grant {
    match place {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("not held: {other:?}"),
    }
}

/// What a claim that must wait knows of those ahead.
#[track_caller]
pub fn waiting(place: AcquireOutcome) -> QueuePosition {
    match place {
        AcquireOutcome::Waiting(ahead) => ahead,
        other => panic!("not waiting: {other:?}"),
    }
}

/// Whom a try that must fail found.
#[track_caller]
pub fn busy(place: AcquireOutcome) -> Option<Box<Holder>> {
    match place {
        AcquireOutcome::Busy(holder) => holder,
        other => panic!("not busy: {other:?}"),
    }
}

/// Why a claim that must not be let in was refused.
#[track_caller]
pub fn refused(place: AcquireOutcome) -> Refusal {
    match place {
        AcquireOutcome::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}
